import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.CachedData;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.OperationTimeoutException;
import net.spy.memcached.transcoders.Transcoder;

/** spymemcached: the text or the binary protocol. */
public final class Spymemcached {
  private interface Check {
    void run() throws Exception;
  }

  /** A check that cannot be made, and why. */
  private static final class Skip extends Exception {
    Skip(String reason) {
      super(reason);
    }
  }

  /** Stores bytes and flags as they are. */
  private static final class Raw implements Transcoder<CachedData> {
    @Override
    public boolean asyncDecode(CachedData data) {
      return false;
    }

    @Override
    public CachedData encode(CachedData data) {
      return data;
    }

    @Override
    public CachedData decode(CachedData data) {
      return data;
    }

    @Override
    public int getMaxSize() {
      return 32 << 20;
    }
  }

  private static final Raw RAW = new Raw();
  private static MemcachedClient client;
  private static boolean binary;

  private static void expect(Object found, Object expected) {
    if (!Objects.equals(found, expected)) {
      throw new AssertionError("found " + found + ", expected " + expected);
    }
  }

  private static void untilAbsent(String key) throws Exception {
    for (int tries = 0; tries < 200; tries++) {
      if (client.get(key) == null) {
        return;
      }
      Thread.sleep(50);
    }
    throw new AssertionError("timeout while waiting for expiry");
  }

  private static boolean set(String key, Object value) throws Exception {
    return client.set(key, 0, value).get();
  }

  private static CachedData data(byte[] bytes) {
    return new CachedData(0xFFFF, bytes, RAW.getMaxSize());
  }

  private static byte[] pattern(int length) {
    byte[] bytes = new byte[length];
    for (int i = 0; i < length; i++) {
      bytes[i] = (byte) i;
    }
    return bytes;
  }

  /**
   * Checks that gets behind a large value that is refused receive their own replies. After an error of the text
   * protocol this client connects again, and loses what it has sent meanwhile.
   */
  private static void refusedBetweenGets() throws Exception {
    set("small", "1");
    int lost = binary ? 0 : 1;
    for (int round = 0; round < (binary ? 8 : 2); round++) {
      int size = round % 2 == 0 ? 8 << 20 : 20 << 20;
      Future<Boolean> refused = client.set("large", 0, data(new byte[size]), RAW);
      boolean stored;
      try {
        stored = refused.get(10, TimeUnit.SECONDS);
      } catch (ExecutionException expected) {
        stored = false;
      }
      expect(stored, false);
      int failed = 0;
      for (int number = 0; number < 20 && failed <= lost; number++) {
        try {
          expect(client.get("small"), "1");
        } catch (OperationTimeoutException | CancellationException failure) {
          failed++;
        }
      }
      expect(failed <= lost, true);
    }
  }

  private static Map<String, Check> checks() {
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put("set", () -> {
      expect(set("set", "1"), true);
      expect(client.get("set"), "1");
      expect(client.get("set-absent"), null);
    });
    checks.put("add", () -> {
      client.delete("add").get();
      expect(client.add("add", 0, "1").get(), true);
      expect(client.add("add", 0, "2").get(), false);
      expect(client.get("add"), "1");
    });
    checks.put("replace", () -> {
      client.delete("replace").get();
      expect(client.replace("replace", 0, "1").get(), false);
      set("replace", "1");
      expect(client.replace("replace", 0, "2").get(), true);
      expect(client.get("replace"), "2");
    });
    checks.put("append", () -> {
      client.delete("append").get();
      expect(client.append("append", "x").get(), false);
      set("append", "ab");
      expect(client.append("append", "cd").get(), true);
      expect(client.get("append"), "abcd");
    });
    checks.put("prepend", () -> {
      set("prepend", "cd");
      expect(client.prepend("prepend", "ab").get(), true);
      expect(client.get("prepend"), "abcd");
    });
    checks.put("cas", () -> {
      set("cas", "1");
      CASValue<Object> found = client.gets("cas");
      expect(found.getValue(), "1");
      expect(client.cas("cas", found.getCas(), "2"), CASResponse.OK);
      expect(client.cas("cas", found.getCas(), "3"), CASResponse.EXISTS);
      client.delete("cas").get();
      expect(client.cas("cas", found.getCas(), "4"), CASResponse.NOT_FOUND);
    });
    checks.put("get-multi", () -> {
      List<String> keys = new ArrayList<>();
      for (int number = 0; number < 150; number++) {
        keys.add("multi-" + number);
        if (number < 100) {
          set("multi-" + number, "" + number);
        }
      }
      Map<String, Object> found = client.getBulk(keys);
      expect(found.size(), 100);
      expect(found.get("multi-7"), "7");
    });
    checks.put("incr", () -> {
      client.delete("incr").get();
      expect(client.incr("incr", 1), -1L);
      expect(client.incr("incr", 1, 41), 41L);
      expect(client.incr("incr", 1), 42L);
    });
    checks.put("decr", () -> {
      set("decr", "10");
      expect(client.decr("decr", 1), 9L);
      expect(client.decr("decr", 100), 0L);
    });
    checks.put("delete", () -> {
      set("delete", "1");
      expect(client.delete("delete").get(), true);
      expect(client.delete("delete").get(), false);
    });
    checks.put("touch", () -> {
      if (!binary) {
        throw new Skip("only over the binary protocol");
      }
      client.delete("touch").get();
      expect(client.touch("touch", 100).get(), false);
      set("touch", "1");
      expect(client.touch("touch", 1).get(), true);
      untilAbsent("touch");
    });
    checks.put("get-and-touch", () -> {
      if (!binary) {
        throw new Skip("only over the binary protocol");
      }
      set("gat", "1");
      expect(client.getAndTouch("gat", 1).getValue(), "1");
      untilAbsent("gat");
    });
    checks.put("expiry", () -> {
      client.set("expiry", 1, "1").get();
      client.set("expiry-long", 1000, "1").get();
      untilAbsent("expiry");
      expect(client.get("expiry-long"), "1");
    });
    checks.put("flags", () -> {
      for (Object value : new Object[] {"text", 5, 1L << 40, true, new ArrayList<>(List.of(1, 2))}) {
        set("flags", value);
        expect(client.get("flags"), value);
      }
      client.set("flags", 0, data(new byte[] {1}), RAW).get();
      expect(client.get("flags", RAW).getFlags(), 0xFFFF);
    });
    checks.put("large", () -> {
      byte[] large = pattern(998400);
      expect(client.set("large", 0, data(large), RAW).get(), true);
      expect(Arrays.equals(client.get("large", RAW).getData(), large), true);
    });
    checks.put("too-large", () -> {
      boolean stored;
      try {
        stored = client.set("large", 0, data(new byte[2 << 20]), RAW).get();
      } catch (Exception refused) {
        stored = false;
      }
      expect(stored, false);
      expect(client.get("large"), null);
      refusedBetweenGets();
    });
    checks.put("binary-value", () -> {
      client.set("binary", 0, data(pattern(256)), RAW).get();
      expect(Arrays.equals(client.get("binary", RAW).getData(), pattern(256)), true);
    });
    checks.put("binary-key", () -> {
      String key = "schl\u00fcssel-\u9375";
      set(key, "1");
      expect(client.get(key), "1");
    });
    checks.put("empty", () -> {
      client.set("empty", 0, data(new byte[0]), RAW).get();
      expect(client.get("empty", RAW).getData().length, 0);
    });
    checks.put("noreply", null);
    checks.put("stats", () -> {
      Map<String, String> found = client.getStats().values().iterator().next();
      for (String name : new String[] {"pid", "curr_items", "bytes", "get_hits", "evictions"}) {
        expect(found.containsKey(name), true);
      }
    });
    checks.put("version", () -> expect(client.getVersions().values().iterator().next().startsWith("1."), true));
    checks.put("flush", () -> {
      set("flush", "1");
      client.flush().get();
      expect(client.get("flush"), null);
    });
    return checks;
  }

  public static void main(String[] arguments) throws Exception {
    System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
    Logger.getLogger("net.spy.memcached").setLevel(Level.OFF);
    int colon = arguments[0].lastIndexOf(':');
    InetSocketAddress address =
        new InetSocketAddress(arguments[0].substring(0, colon), Integer.parseInt(arguments[0].substring(colon + 1)));
    binary = arguments[1].equals("binary");
    client = new MemcachedClient(
        new ConnectionFactoryBuilder()
            .setProtocol(binary ? Protocol.BINARY : Protocol.TEXT)
            .setOpTimeout(10000)
            .build(),
        List.of(address));
    boolean failed = false;
    for (Map.Entry<String, Check> check : checks().entrySet()) {
      String name = check.getKey();
      try {
        if (check.getValue() == null) {
          throw new Skip("the client has no function for it");
        }
        check.getValue().run();
        System.out.println("pass " + name);
      } catch (Skip reason) {
        System.out.println("skip " + name + ": " + reason.getMessage());
      } catch (Throwable error) {
        failed = true;
        System.out.println("fail " + name + ": " + error.toString().replace('\n', ' '));
      }
    }
    client.shutdown();
    System.exit(failed ? 1 : 0);
  }
}
