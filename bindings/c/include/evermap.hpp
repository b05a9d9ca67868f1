/* Evermap for C++17: evermap.h with destructors, exceptions and std::string_view. One file, nothing
 * to link but libevermap. How to use it: docs/use/c.md.
 *
 * What fails throws evermap::error. What is absent is an empty std::optional, or false. Objects are
 * moved, not copied; a moved-from object may only be destroyed or assigned to. A map, a cursor and
 * a value keep their file open; a batch and a cursor are for one thread at a time, everything else
 * is for any number of threads.
 */
#ifndef EVERMAP_HPP
#define EVERMAP_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evermap.h"

namespace evermap {

/* What failed. what() is the sentence of evermap_message(). */
class error : public std::runtime_error {
  public:
    explicit error(evermap_status status)
        : std::runtime_error(evermap_message()), status_(status) {}
    evermap_status status() const noexcept { return status_; }
    const char *name() const noexcept { return evermap_status_name(status_); }

  private:
    evermap_status status_;
};

/* Throws if a call has failed, and returns its answer otherwise. */
inline evermap_status check(evermap_status status) {
    if (status < 0) {
        throw error(status);
    }
    return status;
}

/* How long a record lives, in whole seconds; zero is for ever. */
using seconds = std::chrono::seconds;

namespace detail {

inline std::uint64_t ttl(seconds life) {
    return life.count() > 0 ? static_cast<std::uint64_t>(life.count()) : 0;
}

template <typename T, void (*Free)(T *)> struct freer {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, void (*Free)(T *)> using handle = std::unique_ptr<T, freer<T, Free>>;

/* Bytes that are NULL are no bound of a scan, so an empty key is not at NULL. */
inline const void *at(std::string_view bytes) {
    return bytes.data() == nullptr ? "" : bytes.data();
}

} // namespace detail

/* A value that was read: where it is stored if it is borrowed(), and otherwise a copy. It should
 * not be kept for long. */
class value {
  public:
    value() noexcept : raw_{} {}
    explicit value(const evermap_value &raw) noexcept : raw_(raw) {}
    value(value &&other) noexcept : raw_(std::exchange(other.raw_, evermap_value{})) {}
    value &operator=(value &&other) noexcept {
        std::swap(raw_, other.raw_);
        return *this;
    }
    value(const value &) = delete;
    value &operator=(const value &) = delete;
    ~value() { evermap_value_release(&raw_); }

    std::string_view view() const noexcept {
        return {reinterpret_cast<const char *>(raw_.data), raw_.len};
    }
    operator std::string_view() const noexcept { return view(); }
    std::string str() const { return std::string(view()); }
    const char *data() const noexcept { return reinterpret_cast<const char *>(raw_.data); }
    std::size_t size() const noexcept { return raw_.len; }
    bool empty() const noexcept { return raw_.len == 0; }
    std::uint64_t cas() const noexcept { return raw_.cas; }
    std::uint32_t flags() const noexcept { return raw_.flags; }
    bool borrowed() const noexcept { return raw_.borrowed; }
    /* Seconds since 1970, or nothing. */
    std::optional<std::uint64_t> expires_at() const {
        return raw_.expires_at == 0 ? std::nullopt : std::optional<std::uint64_t>(raw_.expires_at);
    }

  private:
    evermap_value raw_;
};

/* A walk over pairs:
 *
 *     for (auto [key, value] : map.scan_prefix("user:")) { ... }
 *
 * Both are valid until the next pair. A cursor is walked over once. */
class cursor {
  public:
    using pair = std::pair<std::string_view, std::string_view>;

    explicit cursor(evermap_cursor *raw) noexcept : raw_(raw) {}

    /* Returns the next pair, or nothing behind the last one. */
    std::optional<pair> next() {
        evermap_slice key, value;
        if (check(evermap_cursor_next(raw_.get(), &key, &value)) == EVERMAP_END) {
            return std::nullopt;
        }
        return pair{view(key), view(value)};
    }

    class iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = pair;
        using difference_type = std::ptrdiff_t;
        using pointer = const pair *;
        using reference = const pair &;

        iterator() = default;
        explicit iterator(cursor *from) : from_(from) { ++*this; }
        reference operator*() const { return *pair_; }
        pointer operator->() const { return &*pair_; }
        iterator &operator++() {
            pair_ = from_->next();
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(const iterator &other) const { return !pair_ && !other.pair_; }
        bool operator!=(const iterator &other) const { return !(*this == other); }

      private:
        cursor *from_ = nullptr;
        std::optional<pair> pair_;
    };

    iterator begin() { return iterator(this); }
    iterator end() { return iterator(); }

  private:
    static std::string_view view(const evermap_slice &slice) {
        return {static_cast<const char *>(slice.data), slice.len};
    }
    detail::handle<evermap_cursor, evermap_cursor_free> raw_;
};

/* Changes and conditions that take effect together or not at all. */
class batch {
  public:
    batch() : raw_(evermap_batch_new()) {}

    batch &in_map(const char *name) {
        check(evermap_batch_in_map(raw_.get(), name));
        return *this;
    }
    batch &in_default_map() { return in_map(nullptr); }
    batch &put(std::string_view key, std::string_view value, seconds life = seconds(0)) {
        check(evermap_batch_put(raw_.get(), key.data(), key.size(), value.data(), value.size(),
                                detail::ttl(life)));
        return *this;
    }
    batch &erase(std::string_view key) {
        check(evermap_batch_delete(raw_.get(), key.data(), key.size()));
        return *this;
    }
    batch &add(std::string_view key, std::int64_t delta) {
        check(evermap_batch_add(raw_.get(), key.data(), key.size(), delta));
        return *this;
    }
    /* The record must be the one with this cas(), or absent if that is 0. */
    batch &expect(std::string_view key, std::uint64_t cas) {
        check(evermap_batch_expect(raw_.get(), key.data(), key.size(), cas));
        return *this;
    }
    void clear() { check(evermap_batch_clear(raw_.get())); }
    const evermap_batch *raw() const noexcept { return raw_.get(); }

  private:
    detail::handle<evermap_batch, evermap_batch_free> raw_;
};

/* The operations of a map. A `db` lends its default map as one. */
class map_view {
  public:
    explicit map_view(const evermap_map *raw) noexcept : at_(raw) {}

    std::optional<value> get(std::string_view key) const {
        evermap_value found;
        if (check(evermap_get(at_, key.data(), key.size(), &found)) != EVERMAP_OK) {
            return std::nullopt;
        }
        return value(found);
    }
    /* One for each key, in their order. */
    std::vector<std::optional<value>> get_many(const std::vector<std::string_view> &keys) const {
        std::vector<evermap_slice> slices;
        slices.reserve(keys.size());
        for (std::string_view key : keys) {
            slices.push_back({key.data(), key.size()});
        }
        std::vector<std::optional<value>> values;
        values.reserve(keys.size());
        std::vector<evermap_value> raw(keys.size());
        check(evermap_get_many(at_, slices.data(), slices.size(), raw.data()));
        for (const evermap_value &one : raw) {
            values.push_back(one.data ? std::optional<value>(value(one)) : std::nullopt);
        }
        return values;
    }
    bool contains(std::string_view key) const {
        return check(evermap_contains(at_, key.data(), key.size())) == EVERMAP_OK;
    }
    void put(std::string_view key, std::string_view value) const {
        check(evermap_put(at_, key.data(), key.size(), value.data(), value.size()));
    }
    /* Returns the cas() of the new record. */
    std::uint64_t put(std::string_view key, std::string_view value, seconds life,
                      std::uint32_t flags = 0) const {
        std::uint64_t cas = 0;
        put_when(key, value, life, flags, EVERMAP_ALWAYS, cas);
        return cas;
    }
    /* Returns whether the key was absent, and is bound now. */
    bool insert(std::string_view key, std::string_view value, seconds life = seconds(0),
                std::uint32_t flags = 0) const {
        std::uint64_t cas;
        return put_when(key, value, life, flags, EVERMAP_IF_ABSENT, cas) == EVERMAP_OK;
    }
    /* Returns whether the key was present, and has the new value now. */
    bool replace(std::string_view key, std::string_view value, seconds life = seconds(0),
                 std::uint32_t flags = 0) const {
        std::uint64_t cas;
        return put_when(key, value, life, flags, EVERMAP_IF_PRESENT, cas) == EVERMAP_OK;
    }
    /* Returns whether the record was the one with this cas(). */
    bool compare_exchange(std::string_view key, std::uint64_t cas, std::string_view value,
                          seconds life = seconds(0), std::uint32_t flags = 0) const {
        return check(evermap_compare_exchange(at_, key.data(), key.size(), cas, value.data(),
                                              value.size(), detail::ttl(life), flags,
                                              nullptr)) == EVERMAP_OK;
    }
    bool erase(std::string_view key) const {
        return check(evermap_delete(at_, key.data(), key.size())) == EVERMAP_OK;
    }
    bool erase_if(std::string_view key, std::uint64_t cas) const {
        return check(evermap_delete_if(at_, key.data(), key.size(), cas)) == EVERMAP_OK;
    }
    /* Returns the sum. */
    std::int64_t add(std::string_view key, std::int64_t delta) const {
        std::int64_t sum = 0;
        check(evermap_add(at_, key.data(), key.size(), delta, &sum));
        return sum;
    }
    void append(std::string_view key, std::string_view data) const {
        check(evermap_append(at_, key.data(), key.size(), data.data(), data.size()));
    }
    /* Returns whether the key is present. */
    bool expire(std::string_view key, seconds life) const {
        return check(evermap_expire(at_, key.data(), key.size(), detail::ttl(life))) == EVERMAP_OK;
    }
    /* Nothing if the key is absent; less than zero if it does not expire. */
    std::optional<seconds> ttl(std::string_view key) const {
        std::int64_t left = 0;
        if (check(evermap_ttl(at_, key.data(), key.size(), &left)) != EVERMAP_OK) {
            return std::nullopt;
        }
        return seconds(left);
    }
    void clear() const { check(evermap_clear(at_)); }
    evermap_stat stat() const {
        evermap_stat stat;
        check(evermap_map_stat(at_, &stat));
        return stat;
    }
    /* All pairs, in no order. */
    cursor walk() const {
        evermap_cursor *raw;
        check(evermap_walk(at_, &raw));
        return cursor(raw);
    }
    /* Pairs in the order of their keys, from `from` to before `to`. */
    cursor scan(std::optional<std::string_view> from = std::nullopt,
                std::optional<std::string_view> to = std::nullopt, bool reverse = false,
                std::uint64_t limit = 0) const {
        evermap_cursor *raw;
        check(evermap_scan(at_, from ? detail::at(*from) : nullptr, from ? from->size() : 0,
                           to ? detail::at(*to) : nullptr, to ? to->size() : 0, reverse, limit,
                           &raw));
        return cursor(raw);
    }
    cursor scan_prefix(std::string_view prefix, bool reverse = false,
                       std::uint64_t limit = 0) const {
        evermap_cursor *raw;
        check(evermap_scan_prefix(at_, prefix.data(), prefix.size(), reverse, limit, &raw));
        return cursor(raw);
    }

  protected:
    const evermap_map *at_;

  private:
    evermap_status put_when(std::string_view key, std::string_view value, seconds life,
                            std::uint32_t flags, evermap_when when, std::uint64_t &cas) const {
        return check(evermap_put_with(at_, key.data(), key.size(), value.data(), value.size(),
                                      detail::ttl(life), flags, when, &cas));
    }
};

/* A map with a name. */
class map : public map_view {
  public:
    explicit map(evermap_map *raw) noexcept : map_view(raw), raw_(raw) {}

  private:
    detail::handle<evermap_map, evermap_map_free> raw_;
};

/* How to open a store: see evermap_options_set(). */
class options {
  public:
    options() : raw_(evermap_options_new()) {}
    options &set(const char *name, const std::string &value) {
        check(evermap_options_set(raw_.get(), name, value.c_str()));
        return *this;
    }
    const evermap_options *raw() const noexcept { return raw_.get(); }

  private:
    detail::handle<evermap_options, evermap_options_free> raw_;
};

/* An open store, or a snapshot of one; used as a map it is its default map. The destructor closes
 * it, but cannot report whether that succeeded: close() can. Values must be destroyed before. */
class db : public map_view {
  public:
    explicit db(const std::string &path, const options &how = options())
        : db(opened(path.c_str(), how)) {}
    static db in_memory(const options &how = options()) { return db(opened(nullptr, how)); }

    db(db &&other) noexcept
        : map_view(std::exchange(other.at_, nullptr)), raw_(std::exchange(other.raw_, nullptr)) {}
    db &operator=(db &&other) noexcept {
        std::swap(raw_, other.raw_);
        std::swap(at_, other.at_);
        return *this;
    }
    db(const db &) = delete;
    db &operator=(const db &) = delete;
    ~db() { evermap_close(raw_); }

    void close() {
        evermap_status status = evermap_close(raw_);
        if (status != EVERMAP_ERR_DEADLOCK) {
            raw_ = nullptr;
            at_ = nullptr;
        }
        check(status);
    }
    map open_map(const char *name, bool create = true) const {
        evermap_map *opened;
        check(evermap_map_open(raw_, name, create, &opened));
        return map(opened);
    }
    bool drop_map(const char *name) const {
        return check(evermap_drop_map(raw_, name)) == EVERMAP_OK;
    }
    std::vector<std::string> maps() const {
        std::vector<std::string> names;
        char name[EVERMAP_MAP_NAME_MAX + 1];
        while (check(evermap_map_name(raw_, names.size(), name, sizeof name)) != EVERMAP_END) {
            names.emplace_back(name);
        }
        return names;
    }
    /* Returns whether all conditions held, and everything was done. */
    bool apply(const batch &changes) const {
        return check(evermap_apply(raw_, changes.raw())) != EVERMAP_REFUSED;
    }
    db snapshot(std::uint64_t limit = 0) const {
        evermap_db *taken;
        check(evermap_snapshot(raw_, limit, &taken));
        return db(taken);
    }
    void backup(const std::string &path) const { check(evermap_backup(raw_, path.c_str())); }
    void sync() const { check(evermap_sync(raw_)); }
    const evermap_db *raw() const noexcept { return raw_; }

  private:
    explicit db(evermap_db *raw) noexcept : map_view(evermap_default_map(raw)), raw_(raw) {}
    static evermap_db *opened(const char *path, const options &how) {
        evermap_db *raw;
        check(path ? evermap_open(path, how.raw(), &raw) : evermap_open_memory(how.raw(), &raw));
        return raw;
    }
    evermap_db *raw_;
};

} // namespace evermap

#endif
