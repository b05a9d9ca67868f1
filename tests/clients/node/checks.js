// Runs the checks of a client and prints a line for each; see checks.py.
'use strict';

const assert = require('assert');

const NAMES = [
  'set', 'add', 'replace', 'append', 'prepend', 'cas', 'get-multi', 'incr', 'decr', 'delete', 'touch',
  'get-and-touch', 'expiry', 'flags', 'large', 'too-large', 'binary-value', 'binary-key', 'empty', 'noreply',
  'stats', 'version', 'flush',
];

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function until(what, condition) {
  for (const end = Date.now() + 10000; Date.now() < end; await sleep(50)) {
    if (await condition()) return;
  }
  throw new Error(`timeout while waiting for ${what}`);
}

async function run(checks) {
  let failed = false;
  for (const name of NAMES) {
    if (!checks[name]) {
      console.log(`skip ${name}: the client has no function for it`);
      continue;
    }
    try {
      await checks[name]();
      console.log(`pass ${name}`);
    } catch (error) {
      failed = true;
      console.log(`fail ${name}: ${String(error && error.message || error).replace(/\s+/g, ' ').slice(0, 200)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}

const LARGE = Buffer.alloc(998400, Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)));
const BINARY = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

module.exports = { run, until, expect: assert.deepStrictEqual, LARGE, BINARY };
