// gomemcache: the text protocol.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var client *memcache.Client

func item(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

func expectError(found, expected error) error {
	if !errors.Is(found, expected) {
		return fmt.Errorf("found error %v, expected %v", found, expected)
	}
	return nil
}

func expectValue(key, expected string) error {
	found, err := client.Get(key)
	if err != nil {
		return fmt.Errorf("get %q: %w", key, err)
	}
	if string(found.Value) != expected {
		return fmt.Errorf("found %.50q, expected %.50q", found.Value, expected)
	}
	return nil
}

func expectNumber(found uint64, err error, expected uint64) error {
	if err != nil || found != expected {
		return fmt.Errorf("found %d (%v), expected %d", found, err, expected)
	}
	return nil
}

// untilAbsent waits until a key has expired.
func untilAbsent(key string) error {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := client.Get(key); errors.Is(err, memcache.ErrCacheMiss) {
			return nil
		}
	}
	return errors.New("timeout while waiting for expiry")
}

func all(outcomes ...error) error {
	return errors.Join(outcomes...)
}

type check struct {
	name string
	run  func() error
}

const missing = "the client has no function for it"

var checks = []check{
	{"set", func() error {
		_, err := client.Get("set-absent")
		return all(client.Set(item("set", "1")), expectValue("set", "1"), expectError(err, memcache.ErrCacheMiss))
	}},
	{"add", func() error {
		client.Delete("add")
		return all(client.Add(item("add", "1")), expectError(client.Add(item("add", "2")), memcache.ErrNotStored),
			expectValue("add", "1"))
	}},
	{"replace", func() error {
		client.Delete("replace")
		return all(expectError(client.Replace(item("replace", "1")), memcache.ErrNotStored),
			client.Set(item("replace", "1")), client.Replace(item("replace", "2")), expectValue("replace", "2"))
	}},
	{"append", func() error {
		client.Delete("append")
		return all(expectError(client.Append(item("append", "x")), memcache.ErrNotStored),
			client.Set(item("append", "ab")), client.Append(item("append", "cd")), expectValue("append", "abcd"))
	}},
	{"prepend", func() error {
		return all(client.Set(item("prepend", "cd")), client.Prepend(item("prepend", "ab")),
			expectValue("prepend", "abcd"))
	}},
	{"cas", func() error {
		if err := client.Set(item("cas", "1")); err != nil {
			return err
		}
		first, err := client.Get("cas")
		if err != nil {
			return err
		}
		second := *first
		first.Value, second.Value = []byte("2"), []byte("3")
		outcome := all(client.CompareAndSwap(first), expectError(client.CompareAndSwap(&second), memcache.ErrCASConflict),
			expectValue("cas", "2"))
		client.Delete("cas")
		return all(outcome, expectError(client.CompareAndSwap(&second), memcache.ErrCacheMiss))
	}},
	{"get-multi", func() error {
		var keys []string
		for number := range 150 {
			key := fmt.Sprintf("multi-%d", number)
			keys = append(keys, key)
			if number < 100 {
				if err := client.Set(item(key, strconv.Itoa(number))); err != nil {
					return err
				}
			}
		}
		found, err := client.GetMulti(keys)
		if err != nil || len(found) != 100 || string(found["multi-7"].Value) != "7" {
			return fmt.Errorf("found %d items (%v)", len(found), err)
		}
		return nil
	}},
	{"incr", func() error {
		client.Delete("incr")
		_, err := client.Increment("incr", 1)
		absent := expectError(err, memcache.ErrCacheMiss)
		stored := client.Set(item("incr", "41"))
		found, err := client.Increment("incr", 1)
		return all(absent, stored, expectNumber(found, err, 42))
	}},
	{"decr", func() error {
		stored := client.Set(item("decr", "10"))
		nine, err1 := client.Decrement("decr", 1)
		zero, err2 := client.Decrement("decr", 100)
		return all(stored, expectNumber(nine, err1, 9), expectNumber(zero, err2, 0))
	}},
	{"delete", func() error {
		return all(client.Set(item("delete", "1")), client.Delete("delete"),
			expectError(client.Delete("delete"), memcache.ErrCacheMiss))
	}},
	{"touch", func() error {
		client.Delete("touch")
		return all(expectError(client.Touch("touch", 100), memcache.ErrCacheMiss), client.Set(item("touch", "1")),
			client.Touch("touch", 1), untilAbsent("touch"))
	}},
	{"get-and-touch", func() error {
		if err := client.Set(item("gat", "1")); err != nil {
			return err
		}
		found, err := client.GetAndTouch("gat", 1)
		if err != nil || string(found.Value) != "1" {
			return fmt.Errorf("found %v (%v)", found, err)
		}
		return untilAbsent("gat")
	}},
	{"expiry", func() error {
		short, long := item("expiry", "1"), item("expiry-long", "1")
		short.Expiration, long.Expiration = 1, 1000
		return all(client.Set(short), client.Set(long), untilAbsent("expiry"), expectValue("expiry-long", "1"))
	}},
	{"flags", func() error {
		flagged := item("flags", "1")
		flagged.Flags = 0xFFFFFFFF
		if err := client.Set(flagged); err != nil {
			return err
		}
		found, err := client.Get("flags")
		if err != nil || found.Flags != flagged.Flags {
			return fmt.Errorf("found %v (%v)", found, err)
		}
		return nil
	}},
	{"large", func() error {
		large := string(bytes.Repeat([]byte("0123456789abcdef"), 62500))
		return all(client.Set(item("large", large)), expectValue("large", large))
	}},
	{"too-large", func() error {
		err := client.Set(&memcache.Item{Key: "large", Value: make([]byte, 2<<20)})
		_, miss := client.Get("large")
		if err == nil {
			return errors.New("stored")
		}
		return expectError(miss, memcache.ErrCacheMiss)
	}},
	{"binary-value", func() error {
		var value []byte
		for number := range 256 {
			value = append(value, byte(number))
		}
		return all(client.Set(item("binary", string(value))), expectValue("binary", string(value)))
	}},
	{"binary-key", func() error {
		key := "schl\u00fcssel-\u9375"
		return all(client.Set(item(key, "1")), expectValue(key, "1"))
	}},
	{"empty", func() error { return all(client.Set(item("empty", "")), expectValue("empty", "")) }},
	{"noreply", nil},
	{"stats", nil},
	{"version", func() error { return client.Ping() }},
	{"flush", func() error {
		outcome := all(client.Set(item("flush", "1")), client.FlushAll())
		_, err := client.Get("flush")
		return all(outcome, expectError(err, memcache.ErrCacheMiss))
	}},
}

func main() {
	client = memcache.New(os.Args[1])
	client.Timeout = 10 * time.Second
	failed := false
	for _, check := range checks {
		if check.run == nil {
			fmt.Printf("skip %s: %s\n", check.name, missing)
		} else if err := check.run(); err != nil {
			failed = true
			fmt.Printf("fail %s: %q\n", check.name, err)
		} else {
			fmt.Printf("pass %s\n", check.name)
		}
	}
	if failed {
		os.Exit(1)
	}
}
