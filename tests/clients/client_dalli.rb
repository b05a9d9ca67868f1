# dalli, in Debian's version: the binary protocol.
require 'dalli'

NAMES = %w[
  set add replace append prepend cas get-multi incr decr delete touch get-and-touch expiry flags large too-large
  binary-value binary-key empty noreply stats version flush
].freeze
LARGE = (0..255).to_a.pack('C*') * 3900
BINARY = (0..255).to_a.pack('C*')

def expect(found, expected)
  return if found == expected

  raise "found #{found.inspect[0, 100]}, expected #{expected.inspect[0, 100]}"
end

def wait_until(what)
  deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 10
  until yield
    raise "timeout while waiting for #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

    sleep 0.05
  end
end

address, = ARGV
CLIENT = Dalli::Client.new(address)

CHECKS = {
  'set' => lambda do
    CLIENT.set('set', '1')
    expect(CLIENT.get('set'), '1')
    expect(CLIENT.get('set-absent'), nil)
  end,
  'add' => lambda do
    CLIENT.delete('add')
    expect(!!CLIENT.add('add', '1'), true)
    expect(CLIENT.add('add', '2'), false)
    expect(CLIENT.get('add'), '1')
  end,
  'replace' => lambda do
    CLIENT.delete('replace')
    expect([nil, false, 0].include?(CLIENT.replace('replace', '1')), true)
    CLIENT.set('replace', '1')
    expect(!!CLIENT.replace('replace', '2'), true)
    expect(CLIENT.get('replace'), '2')
  end,
  'append' => lambda do
    CLIENT.delete('append')
    expect(!!CLIENT.append('append', 'x'), false)
    CLIENT.set('append', 'ab', 0, raw: true)
    CLIENT.append('append', 'cd')
    expect(CLIENT.get('append', raw: true), 'abcd')
  end,
  'prepend' => lambda do
    CLIENT.set('prepend', 'cd', 0, raw: true)
    CLIENT.prepend('prepend', 'ab')
    expect(CLIENT.get('prepend', raw: true), 'abcd')
  end,
  'cas' => lambda do
    CLIENT.set('cas', '1')
    expect(!!CLIENT.cas('cas') { |value| "#{value}2" }, true)
    expect(CLIENT.get('cas'), '12')
    # Another client is faster.
    outcome = CLIENT.cas('cas') do |value|
      Dalli::Client.new(ARGV[0]).set('cas', 'theirs')
      "#{value}3"
    end
    expect(outcome, false)
    expect(CLIENT.get('cas'), 'theirs')
  end,
  'get-multi' => lambda do
    100.times { |key| CLIENT.set("multi-#{key}", key.to_s) }
    found = CLIENT.get_multi((0...150).map { |key| "multi-#{key}" })
    expect(found, (0...100).to_h { |key| ["multi-#{key}", key.to_s] })
  end,
  'incr' => lambda do
    CLIENT.delete('incr')
    expect(CLIENT.incr('incr', 1), nil)
    expect(CLIENT.incr('incr', 1, 0, 41), 41)
    expect(CLIENT.incr('incr', 1), 42)
  end,
  'decr' => lambda do
    CLIENT.delete('decr')
    expect(CLIENT.decr('decr', 1), nil)
    expect(CLIENT.decr('decr', 1, 0, 10), 10)
    expect(CLIENT.decr('decr', 1), 9)
    expect(CLIENT.decr('decr', 100), 0)
  end,
  'delete' => lambda do
    CLIENT.set('delete', '1')
    expect(CLIENT.delete('delete'), true)
    expect(!!CLIENT.delete('delete'), false)
    expect(CLIENT.get('delete'), nil)
  end,
  'touch' => lambda do
    CLIENT.delete('touch')
    expect(!!CLIENT.touch('touch', 100), false)
    CLIENT.set('touch', '1', 1)
    expect(!!CLIENT.touch('touch', 100), true)
    CLIENT.touch('touch', 1)
    wait_until('expiry') { CLIENT.get('touch').nil? }
  end,
  'get-and-touch' => lambda do
    CLIENT.set('gat', '1')
    expect(CLIENT.gat('gat', 1), '1')
    wait_until('expiry') { CLIENT.get('gat').nil? }
  end,
  'expiry' => lambda do
    CLIENT.set('expiry', '1', 1)
    CLIENT.set('expiry-long', '1', 1000)
    wait_until('expiry') { CLIENT.get('expiry').nil? }
    expect(CLIENT.get('expiry-long'), '1')
  end,
  'flags' => lambda do
    # The client stores the serialisation of a value in its flags.
    ['text', 5, { 'a' => [1, 2] }, :symbol].each do |value|
      CLIENT.set('flags', value)
      expect(CLIENT.get('flags'), value)
    end
  end,
  'large' => lambda do
    CLIENT.set('large', LARGE, 0, raw: true)
    expect(CLIENT.get('large', raw: true), LARGE)
  end,
  'too-large' => lambda do
    stored = begin
      CLIENT.set('large', Random.bytes(2 << 20), 0, raw: true)
    rescue Dalli::ValueOverMaxSize, Dalli::DalliError
      false
    end
    expect(!!stored, false)
  end,
  'binary-value' => lambda do
    CLIENT.set('binary', BINARY, 0, raw: true)
    expect(CLIENT.get('binary', raw: true), BINARY)
  end,
  'binary-key' => lambda do
    key = "key with spaces and \u00e9"
    CLIENT.set(key, '1')
    expect(CLIENT.get(key), '1')
    expect(CLIENT.get_multi(key).values, ['1'])
  end,
  'empty' => lambda do
    CLIENT.set('empty', '', 0, raw: true)
    expect(CLIENT.get('empty', raw: true), '')
  end,
  'noreply' => lambda do
    CLIENT.multi { 100.times { |number| CLIENT.set('noreply', number.to_s) } }
    expect(CLIENT.get('noreply'), '99')
  end,
  'stats' => lambda do
    found = CLIENT.stats.values.first
    expect(%w[pid curr_items bytes get_hits evictions] - found.keys, [])
  end,
  'version' => -> { expect(CLIENT.version.values.first[0, 2], '1.') },
  'flush' => lambda do
    CLIENT.set('flush', '1')
    CLIENT.flush_all
    expect(CLIENT.get('flush'), nil)
  end
}.freeze

failed = false
NAMES.each do |name|
  CHECKS.fetch(name).call
  puts "pass #{name}"
rescue StandardError => e
  failed = true
  puts "fail #{name}: #{e.class}: #{e.message[0, 200]}".tr("\n", ' ')
end
exit(failed ? 1 : 0)
