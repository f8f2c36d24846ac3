// The device `mux` as torch sees it: guard, hooks, generator, events. One device, one stream; nothing here touches a socket.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <random>

#include "stream.hpp"

namespace gt {
namespace {

std::atomic<int64_t> acknowledged{0};  // instructions that workers said are done

// An event is the number of instructions that stood before it.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kMux, 0)); }
  static int64_t issued() {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    return s.issued;
  }
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
    if (!*event) *event = new int64_t;
    *static_cast<int64_t*>(*event) = issued();
  }
  void block(void*, const c10::Stream&) const override {}  // one stream: what comes later waits anyway
  bool queryEvent(void* event) const override {
    return !event || acknowledged.load(std::memory_order_relaxed) >= *static_cast<int64_t*>(event);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<int64_t*>(event); }
  void synchronizeEvent(void*) const override { synchronizeSession(); }
  bool queryStream(const c10::Stream&) const override { return acknowledged.load(std::memory_order_relaxed) >= issued(); }
  void synchronizeStream(const c10::Stream&) const override { synchronizeSession(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronizeSession(); }
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

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
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

void acknowledge(int64_t instructions) { acknowledged.fetch_add(instructions, std::memory_order_relaxed); }

}  // namespace gt
