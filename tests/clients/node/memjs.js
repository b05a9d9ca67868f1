// memjs: the binary protocol.
'use strict';

const memjs = require('memjs');
const { run, until, expect, LARGE, BINARY } = require('./checks');

const client = memjs.Client.create(process.argv[2], { timeout: 10, retries: 0 });
const get = async (key) => {
  const { value } = await client.get(key);
  return value && value.toString('latin1');
};
const set = (key, value, expires = 0) => client.set(key, value, { expires });

run({
  async set() {
    expect(await set('set', '1'), true);
    expect(await get('set'), '1');
    expect(await get('set-absent'), null);
  },
  async add() {
    await client.delete('add');
    expect(await client.add('add', '1', {}), true);
    expect(await client.add('add', '2', {}), false);
    expect(await get('add'), '1');
  },
  async replace() {
    await client.delete('replace');
    expect(await client.replace('replace', '1', {}), false);
    await set('replace', '1');
    expect(await client.replace('replace', '2', {}), true);
    expect(await get('replace'), '2');
  },
  async append() {
    await set('append', 'ab');
    expect(await client.append('append', 'cd'), true);
    expect(await get('append'), 'abcd');
  },
  // Version 1.3.2 sends the request of append for prepend.
  async 'get-multi'() {
    await Promise.all(Array.from({ length: 100 }, (_, key) => set(`multi-${key}`, String(key))));
    const found = await Promise.all(Array.from({ length: 150 }, (_, key) => get(`multi-${key}`)));
    expect(found, Array.from({ length: 150 }, (_, key) => (key < 100 ? String(key) : null)));
  },
  async incr() {
    await client.delete('incr');
    const increment = async (amount) => (await client.increment('incr', amount, { initial: 40 })).value;
    expect(await increment(1), 40);
    expect(await increment(2), 42);
  },
  async decr() {
    await client.delete('decr');
    const decrement = async (amount) => (await client.decrement('decr', amount, { initial: 10 })).value;
    expect(await decrement(1), 10);
    expect(await decrement(1), 9);
    expect(await decrement(100), 0);
  },
  async delete() {
    await set('delete', '1');
    expect(await client.delete('delete'), true);
    expect(await client.delete('delete'), false);
    expect(await get('delete'), null);
  },
  async touch() {
    await client.delete('touch');
    expect(await client.touch('touch', 100), false);
    await set('touch', '1');
    expect(await client.touch('touch', 1), true);
    await until('expiry', async () => (await get('touch')) === null);
  },
  async expiry() {
    await set('expiry', '1', 1);
    await set('expiry-long', '1', 1000);
    await until('expiry', async () => (await get('expiry')) === null);
    expect(await get('expiry-long'), '1');
  },
  async large() {
    expect(await set('large', LARGE), true);
    expect((await client.get('large')).value.equals(LARGE), true);
  },
  async 'too-large'() {
    const stored = await set('large', Buffer.alloc(2 << 20)).catch(() => false);
    expect(stored, false);
    expect(await get('large'), null);
  },
  async 'binary-value'() {
    await set('binary', BINARY);
    expect((await client.get('binary')).value.equals(BINARY), true);
  },
  async 'binary-key'() {
    const key = 'a key with spaces,\r\nlines and \u00e9';
    await set(key, '1');
    expect(await get(key), '1');
  },
  async empty() {
    await set('empty', '');
    expect(await get('empty'), '');
  },
  async stats() {
    const found = await new Promise((resolve, reject) => {
      client.stats((error, server, stats) => (error ? reject(error) : resolve(stats)));
    });
    for (const name of ['pid', 'curr_items', 'bytes', 'get_hits', 'evictions']) expect(name in found, true);
  },
  async flush() {
    await set('flush', '1');
    await client.flush();
    expect(await get('flush'), null);
  },
});
