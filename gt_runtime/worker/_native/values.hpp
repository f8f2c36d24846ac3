// A session's values: an open-addressing table keyed by rising ids, and the ledger that counts each storage once.
// Knows tensors and failures; knows no words, no Python, no other session.
#pragma once
#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "failure.hpp"

namespace gt::worker {

// Keys are not negative. Linear probing with backward-shift deletion: no tombstones, so a table that lives for days of inserts and
// erases stays as fast as a new one. Fibonacci hashing: a client chooses the ids, and must not be able to make them collide.
template <class V>
class IdMap {
 public:
  IdMap() : slots_(kSmallest) {}

  V* find(int64_t key) {
    for (size_t i = home(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

  // The value under `key`, made if it wasn't there. Pointers from find() are void afterwards.
  V& insert(int64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) rehash(slots_.size() * 2);
    size_t i = home(key);
    for (; slots_[i].key != kEmpty; i = (i + 1) & mask_)
      if (slots_[i].key == key) return slots_[i].value;
    slots_[i].key = key;
    ++size_;
    return slots_[i].value;
  }

  bool erase(int64_t key) {
    size_t i = home(key);
    for (; slots_[i].key != key; i = (i + 1) & mask_)
      if (slots_[i].key == kEmpty) return false;
    for (size_t j = (i + 1) & mask_; slots_[j].key != kEmpty; j = (j + 1) & mask_) {
      const size_t wanted = home(slots_[j].key);
      if (((j - wanted) & mask_) < ((j - i) & mask_)) continue;  // it stands between its home and the hole: leave it
      slots_[i] = std::move(slots_[j]);
      i = j;
    }
    slots_[i] = Slot{};
    --size_;
    if (slots_.size() > kSmallest && size_ * 16 < slots_.size()) rehash(slots_.size() / 4);
    return true;
  }

  size_t size() const { return size_; }

  template <class F>
  void each(F&& f) {
    for (auto& slot : slots_)
      if (slot.key != kEmpty) f(slot.key, slot.value);
  }

  void clear() {
    std::vector<Slot> none(kSmallest);
    slots_.swap(none);
    mask_ = kSmallest - 1;
    shift_ = kSmallestShift;
    size_ = 0;
  }

 private:
  static constexpr int64_t kEmpty = -1;
  static constexpr size_t kSmallest = 256;
  static constexpr int kSmallestShift = 64 - 8;
  struct Slot {
    int64_t key = kEmpty;
    V value{};
  };

  size_t home(int64_t key) const { return (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull) >> shift_; }

  void rehash(size_t capacity) {
    capacity = std::max(capacity, kSmallest);
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    mask_ = capacity - 1;
    shift_ = 64 - __builtin_ctzll(capacity);
    for (auto& slot : old) {
      if (slot.key == kEmpty) continue;
      size_t i = home(slot.key);
      while (slots_[i].key != kEmpty) i = (i + 1) & mask_;
      slots_[i] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = kSmallest - 1;
  int shift_ = kSmallestShift;
  size_t size_ = 0;
};

// A number that one thread writes and another one reads for the heartbeat.
class Counter {
 public:
  void add(int64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

enum class State : uint8_t { READY, PENDING, POISON };

struct Value {
  at::Tensor tensor;   // READY
  FailurePtr failure;  // POISON
  State state = State::READY;
};

// The values of one session and what they weigh. A storage counts once however many values alias it, with all its bytes, and goes
// when the last of them goes.
class Values {
 public:
  explicit Values(Counter& worker_bytes) : worker_bytes_(worker_bytes) {}
  ~Values() { clear(); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  Value* find(int64_t id) { return table_.find(id); }

  void store(int64_t id, at::Tensor tensor) {
    retain(tensor);
    Value& value = fresh(id);
    value.tensor = std::move(tensor);
    value.state = State::READY;
  }

  void poison(int64_t id, FailurePtr failure) {
    Value& value = fresh(id);
    value.failure = std::move(failure);
    value.state = State::POISON;
  }

  void expect(int64_t id) { fresh(id).state = State::PENDING; }

  void erase(int64_t id) {
    Value* value = table_.find(id);
    if (value == nullptr) return;
    drop(*value);
    table_.erase(id);
    count_.add(-1);
  }

  // Counts a tensor that is no value (any more): a copy still under way to a peer.
  void retain(const at::Tensor& tensor) {
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    Use& use = storages_.insert(reinterpret_cast<int64_t>(storage));
    if (use.count++ == 0) {
      use.bytes = static_cast<int64_t>(storage->nbytes());
      bytes_.add(use.bytes);
      worker_bytes_.add(use.bytes);
    }
  }

  void release(const at::Tensor& tensor) {
    const auto key = reinterpret_cast<int64_t>(tensor.storage().unsafeGetStorageImpl());
    Use* use = storages_.find(key);
    if (use == nullptr || --use->count > 0) return;
    bytes_.add(-use->bytes);
    worker_bytes_.add(-use->bytes);
    storages_.erase(key);
  }

  void clear() {
    worker_bytes_.add(-bytes_.get());
    bytes_.add(-bytes_.get());
    count_.add(-count_.get());
    table_.clear();
    storages_.clear();
  }

  int64_t bytes() const { return bytes_.get(); }
  int64_t count() const { return count_.get(); }

 private:
  struct Use {
    int64_t count = 0;
    int64_t bytes = 0;
  };

  Value& fresh(int64_t id) {
    const size_t before = table_.size();
    Value& value = table_.insert(id);
    if (table_.size() == before)
      drop(value);
    else
      count_.add(1);
    return value;
  }

  void drop(Value& value) {
    if (value.tensor.defined()) release(value.tensor);
    value.tensor.reset();
    value.failure.reset();
  }

  IdMap<Value> table_;
  IdMap<Use> storages_;
  Counter bytes_, count_;
  Counter& worker_bytes_;
};

}  // namespace gt::worker
