// The device `mux` as torch sees it: guard, hooks, generator, events. One device, one stream; nothing here touches a socket.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>

#include "stream.hpp"

namespace gt {
namespace {

// What was issued before an event, and when workers were known to be done with it (nanoseconds of the steady clock; 0: not yet).
struct Event {
  int64_t issued = 0, done = 0;
};

// Which of the instructions and uploads issued so far are done: those that credit came back for, and all before a synchronization.
struct Progress {
  std::mutex mutex;
  int64_t acknowledged = 0, synchronized = 0;
  std::vector<Event*> pending;

  bool reached(int64_t issued) const { return std::max(acknowledged, synchronized) >= issued; }
  void stamp() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::erase_if(pending, [&](Event* e) { return reached(e->issued) && (e->done = now); });
  }
};
Progress& progress() {
  static auto* p = new Progress();
  return *p;
}

int64_t issuedSoFar() {
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  return s.issued + s.uploads;
}

void synchronizeAll() {
  const auto issued = issuedSoFar();
  synchronizeSession();
  auto& p = progress();
  std::lock_guard lock(p.mutex);
  p.synchronized = std::max(p.synchronized, issued);
  p.stamp();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kMux, 0)); }
  c10::DeviceType type() const override { return kMux; }
  c10::Device exchangeDevice(c10::Device) const override { return {kMux, 0}; }
  c10::Device getDevice() const override { return {kMux, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return only(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const override { return only(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    auto* e = static_cast<Event*>(*event);
    const auto issued = issuedSoFar();
    auto& p = progress();
    std::lock_guard lock(p.mutex);
    std::erase(p.pending, e);
    e->issued = issued, e->done = 0;
    p.pending.push_back(e);
    p.stamp();
  }
  void block(void*, const c10::Stream&) const override {}  // one stream: what comes later waits anyway
  bool queryEvent(void* event) const override {
    auto& p = progress();
    std::lock_guard lock(p.mutex);
    return !event || p.reached(static_cast<Event*>(event)->issued);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    auto& p = progress();
    std::lock_guard lock(p.mutex);
    std::erase(p.pending, static_cast<Event*>(event));
    delete static_cast<Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (!queryEvent(event)) synchronizeAll();
  }
  // Between the moments at which this process knew that workers were done; milliseconds.
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "Both events must be recorded before calculating elapsed time.");
    auto& p = progress();
    std::lock_guard lock(p.mutex);
    const auto from = static_cast<Event*>(first)->done, to = static_cast<Event*>(second)->done;
    TORCH_CHECK(from && to, "Both events must be completed before calculating elapsed time.");
    return static_cast<double>(to - from) / 1e6;
  }
  bool queryStream(const c10::Stream&) const override {
    const auto issued = issuedSoFar();
    auto& p = progress();
    std::lock_guard lock(p.mutex);
    return p.reached(issued);
  }
  void synchronizeStream(const c10::Stream&) const override { synchronizeAll(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronizeAll(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// (seed, offset): each random instruction takes the next offset and carries both, so one seed gives one sequence however many workers run it.
struct Generator final : c10::GeneratorImpl {
  Generator() : GeneratorImpl(c10::Device(kMux, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  uint64_t seed_ = c10::detail::getNonDeterministicRandom() & 0x7fffffffffffffff, offset_ = 0;
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.numel() == 16 && state.is_contiguous() && state.is_cpu(),
                "RNG state of mux must be a contiguous CPU torch.ByteTensor of 16 elements (seed and offset)");
    uint64_t both[2];
    std::memcpy(both, state.data(), 16);
    seed_ = both[0], offset_ = both[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    uint64_t both[2] = {seed_, offset_};
    auto state = at::detail::empty_cpu({16}, c10::ScalarType::Byte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    std::memcpy(state.mutable_data_ptr(), both, 16);
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* g = new Generator();
    g->seed_ = seed_, g->offset_ = offset_;
    return g;
  }
  static c10::DeviceType device_type() { return kMux; }
};

const at::Generator& defaultGenerator() {
  static auto* g = new at::Generator(c10::make_intrusive<Generator>());
  return *g;
}

// Memory that Tensor.pin_memory gives: ordinary memory that is known by its address. Uploads copy it before they return, so there is
// nothing to lock; programs that pin, and ask whether they did, get the answers they expect.
struct Pinned final : c10::Allocator {
  mutable std::mutex mutex;
  mutable std::set<const void*> blocks;
  static Pinned& the() {
    static auto* p = new Pinned();
    return *p;
  }
  c10::DataPtr allocate(size_t n) override {
    void* block = c10::alloc_cpu(n);
    std::lock_guard lock(mutex);
    if (block) blocks.insert(block);
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
  bool has(const void* block) const {
    std::lock_guard lock(mutex);
    return blocks.count(block);
  }
  static void release(void* block) {
    if (!block) return;
    {
      std::lock_guard lock(the().mutex);
      the().blocks.erase(block);
    }
    c10::free_cpu(block);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &Pinned::the(); }
  bool isPinnedPtr(const void* block) const override { return Pinned::the().has(block); }
  c10::Device getDeviceFromPtr(void*) const override { return {kMux, 0}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return defaultGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  void resizePrivateUse1Bytes(const c10::Storage&, size_t) const override {
    notSupported("resizing the storage of a mux tensor", "a value on mux is immutable and has no storage in this process",
                 "make a new tensor, or use Tensor.resize_");
  }
};

}  // namespace

void registerDevice() {
  static auto* hooks = new Hooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
}

std::pair<uint64_t, uint64_t> drawSeed(const std::optional<at::Generator>& generator) {
  at::Generator g = generator && generator->defined() ? *generator : defaultGenerator();
  TORCH_CHECK(g.device().type() == kMux, "Expected a 'mux' device type for generator but found '", g.device().type(), "'");
  std::lock_guard lock(g.mutex());
  auto* own = g.get<Generator>();
  return {own->seed_, own->offset_++};
}

void acknowledge(int64_t instructions) {
  auto& p = progress();
  std::lock_guard lock(p.mutex);
  p.acknowledged += instructions;
  p.stamp();
}

}  // namespace gt
