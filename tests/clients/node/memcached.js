// memcached of npm: the text protocol.
'use strict';

const Memcached = require('memcached');
const { run, until, expect } = require('./checks');

const client = new Memcached(process.argv[2], { timeout: 10000, retries: 0, maxValue: 4 << 20 });
const ask = (method, ...rest) => new Promise((resolve, reject) => {
  client[method](...rest, (error, found) => (error ? reject(error) : resolve(found)));
});
// The library reports that something was not stored as an error.
const refused = async (promise) => {
  try {
    return (await promise) === false;
  } catch (error) {
    return true;
  }
};

run({
  async set() {
    expect(await ask('set', 'set', '1', 0), true);
    expect(await ask('get', 'set'), '1');
    expect(await ask('get', 'set-absent'), undefined);
  },
  async add() {
    await ask('del', 'add');
    expect(await ask('add', 'add', '1', 0), true);
    expect(await refused(ask('add', 'add', '2', 0)), true);
    expect(await ask('get', 'add'), '1');
  },
  async replace() {
    await ask('del', 'replace');
    expect(await refused(ask('replace', 'replace', '1', 0)), true);
    await ask('set', 'replace', '1', 0);
    expect(await ask('replace', 'replace', '2', 0), true);
    expect(await ask('get', 'replace'), '2');
  },
  async append() {
    await ask('set', 'append', 'ab', 0);
    expect(await ask('append', 'append', 'cd'), true);
    expect(await ask('get', 'append'), 'abcd');
  },
  async prepend() {
    await ask('set', 'prepend', 'cd', 0);
    expect(await ask('prepend', 'prepend', 'ab'), true);
    expect(await ask('get', 'prepend'), 'abcd');
  },
  async cas() {
    await ask('set', 'cas', '1', 0);
    const { cas } = await ask('gets', 'cas');
    expect(await ask('cas', 'cas', '2', cas, 0), true);
    expect(await refused(ask('cas', 'cas', '3', cas, 0)), true);
    expect(await ask('get', 'cas'), '2');
  },
  async 'get-multi'() {
    const keys = Array.from({ length: 150 }, (_, key) => `multi-${key}`);
    await Promise.all(keys.slice(0, 100).map((key, number) => ask('set', key, String(number), 0)));
    const found = await ask('getMulti', keys);
    expect(keys.map((key) => found[key]), keys.map((_, number) => (number < 100 ? String(number) : undefined)));
  },
  async incr() {
    await ask('del', 'incr');
    expect(await ask('incr', 'incr', 1), false);
    await ask('set', 'incr', '41', 0);
    expect(await ask('incr', 'incr', 1), 42);
  },
  async decr() {
    await ask('set', 'decr', '10', 0);
    expect(await ask('decr', 'decr', 1), 9);
    expect(await ask('decr', 'decr', 100), 0);
  },
  async delete() {
    await ask('set', 'delete', '1', 0);
    expect(await ask('del', 'delete'), true);
    expect(await ask('del', 'delete'), false);
  },
  async touch() {
    await ask('set', 'touch', '1', 0);
    expect(await ask('touch', 'touch', 1), true);
    await until('expiry', async () => (await ask('get', 'touch')) === undefined);
  },
  async expiry() {
    await ask('set', 'expiry', '1', 1);
    await ask('set', 'expiry-long', '1', 1000);
    await until('expiry', async () => (await ask('get', 'expiry')) === undefined);
    expect(await ask('get', 'expiry-long'), '1');
  },
  async flags() {
    // The client stores the type of a value in its flags.
    for (const value of ['text', 5, { a: [1, 2] }]) {
      await ask('set', 'flags', value, 0);
      expect(await ask('get', 'flags'), value);
    }
  },
  async large() {
    // The client splits replies at line ends, and does not get over values that contain them.
    const large = 'large '.repeat(160000);
    expect(await ask('set', 'large', large, 0), true);
    expect(await ask('get', 'large'), large);
  },
  async 'too-large'() {
    // The client gives up a server that has answered with an error, so another one asks.
    const other = new Memcached(process.argv[2], { timeout: 10000, retries: 0, maxValue: 4 << 20 });
    const stored = await new Promise((resolve) => {
      other.set('large', 'x'.repeat(2 << 20), 0, (error, done) => resolve(!error && done));
    });
    expect(Boolean(stored), false);
    expect(await ask('get', 'large'), undefined);
  },
  async 'binary-key'() {
    const key = 'schl\u00fcssel-\u9375';
    await ask('set', key, '1', 0);
    expect(await ask('get', key), '1');
  },
  async empty() {
    await ask('set', 'empty', '', 0);
    expect(await ask('get', 'empty'), '');
  },
  async stats() {
    const [found] = await ask('stats');
    for (const name of ['pid', 'curr_items', 'bytes', 'get_hits', 'evictions']) expect(name in found, true);
    expect((await ask('settings')).length, 1);
  },
  // The client takes the three numbers at the end, which are those of Evermap.
  async version() {
    const [{ version }] = await ask('version');
    expect(/^\d+\.\d+\.\d+$/.test(version), true);
  },
  async flush() {
    await ask('set', 'flush', '1', 0);
    await ask('flush');
    expect(await ask('get', 'flush'), undefined);
  },
});
