// How much CPU memory the instruction that runs may allocate at a time. An operator's results are known beforehand only where the client
// has said so, and its temporaries never; a single call could ask for more than the host has, which kernels promise first and pay for with
// somebody's life. So the allocator itself says no. Knows bytes; knows no sessions.
#pragma once
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>

namespace gt::worker {

// Holds for the calling thread while it lives. Other threads (copies from peers, intra-operator helpers) aren't bounded.
class Allowance {
 public:
  explicit Allowance(int64_t bytes) {
    most_ = bytes;
    refused_ = 0;
  }
  ~Allowance() { most_ = std::numeric_limits<int64_t>::max(); }
  Allowance(const Allowance&) = delete;
  Allowance& operator=(const Allowance&) = delete;

  // Bytes of the allocation that was refused under the present or last allowance, 0 if none was.
  static int64_t refused() { return refused_; }

  static void check(size_t bytes) {
    if (C10_LIKELY(static_cast<int64_t>(bytes) <= most_)) return;
    refused_ = static_cast<int64_t>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "more memory than this session or worker may have");
  }

 private:
  inline static thread_local int64_t most_ = std::numeric_limits<int64_t>::max();
  inline static thread_local int64_t refused_ = 0;
};

// The process's CPU allocator, with the allowance asked first.
class BoundedAllocator final : public c10::Allocator {
 public:
  static void install() {
    static BoundedAllocator* ours = [] {
      auto* made = new BoundedAllocator(c10::GetCPUAllocator());  // lives as long as what it allocates: for ever
      c10::SetCPUAllocator(made, /*priority=*/255);
      return made;
    }();
    (void)ours;
  }

  c10::DataPtr allocate(size_t bytes) override {
    Allowance::check(bytes);
    return under_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return under_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  explicit BoundedAllocator(c10::Allocator* under) : under_(under) {}
  c10::Allocator* under_;
};

}  // namespace gt::worker
