// What PyTorch's functionalization must do differently for mux: copies that cross devices, results that come back unwrapped, and in-place
// operators whose result would change shape. Each kernel hands everything that isn't mux to the one it replaces.
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "functional.hpp"

namespace gt {
namespace {

using torch::jit::Stack;
namespace fun = at::functionalization::impl;

// Tensor._to_copy: torch's own kernel gives the bare handle back.
struct ToCopy final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    auto& self = (*stack)[stack->size() - n];
    if (!isMux(self.toTensor())) return original.callBoxed(handle, keys, stack);
    self = inner(self.toTensor());
    {
      at::AutoDispatchSkipFunctionalize skip;
      handle.callBoxed(stack);
    }
    auto result = stack->back().toTensor();
    if (result.device().type() == kMux) stack->back() = wrapped(result);
  }
};

// Tensor.lift, lift_fresh: a fresh tensor made of Python data.
struct Lift final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto self = stack->back().toTensor();
    if (self.device().type() != kMux) return original.callBoxed(handle, keys, stack);
    if (!fun::isFunctionalTensor(self)) stack->back() = wrapped(self);
  }
};

// cpu.copy_(mux)
struct CopyInto final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto* arguments = stack->data() + stack->size() - 3;
    auto self = arguments[0].toTensor(), src = arguments[1].toTensor();
    Normal normal(self);
    if (fun::isFunctionalTensor(self) || !isMux(src)) return original.callBoxed(handle, keys, stack);
    {
      at::AutoDispatchSkipFunctionalize skip;
      self.copy_(fetchTensor(inner(src)));
    }
    stack->erase(stack->end() - 3, stack->end());
    stack->push_back(self);
  }
};

// What the next call of an operator must give, as long as this stands.
struct Expecting {
  const Inplace before = inplace;
  explicit Expecting(Inplace now) { inplace = now; }
  ~Expecting() { inplace = before; }
};

// Numbers that travel beside a template are new to no one's verdict: a distribution's parameters are looked at here, in torch's words.
using Check = void (*)(const c10::IValue* arguments);
const std::unordered_map<std::string, Check> kChecks{
    {"aten::uniform_", [](const c10::IValue* a) {
       TORCH_CHECK(a[1].toDouble() <= a[2].toDouble(), "uniform_ expects to return a [from, to) range, but found from=", a[1].toDouble(), " > to=", a[2].toDouble());
     }},
    {"aten::normal_", [](const c10::IValue* a) { TORCH_CHECK(a[2].toDouble() >= 0, "normal expects std >= 0.0, but found std ", a[2].toDouble()); }},
    {"aten::exponential_", [](const c10::IValue* a) { TORCH_CHECK(a[1].toDouble() > 0, "exponential_ expects lambda > 0.0, but found lambda=", a[1].toDouble()); }},
    {"aten::geometric_", [](const c10::IValue* a) {
       TORCH_CHECK(0 < a[1].toDouble() && a[1].toDouble() < 1, "geometric_ expects p to be in (0, 1), but got p=", a[1].toDouble());
     }},
    {"aten::log_normal_", [](const c10::IValue* a) { TORCH_CHECK(a[2].toDouble() > 0, "log_normal_ expects std > 0.0, but found std=", a[2].toDouble()); }},
    {"aten::cauchy_", [](const c10::IValue* a) { TORCH_CHECK(a[2].toDouble() > 0, "cauchy_ expects sigma > 0.0, but found sigma=", a[2].toDouble()); }},
};

// Functionalization keeps a storage's state without a lock: two threads that write into one tensor would tear it.
struct Writing {
  static std::recursive_mutex& mutex() {
    static auto* one = new std::recursive_mutex();
    return *one;
  }
  Writing() { lockWithoutGil(mutex()); }
  ~Writing() { mutex().unlock(); }
};

// Any in-place operator. TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE takes away torch's own check (15 us an operation); here it is done
// on the shape the template knows.
struct InPlace final : Original {
  InPlace(c10::SafeKernelFunction k, std::string n, bool p, Check c) : Original(std::move(k)), name(std::move(n)), apart(p), check(c) {}
  const std::string name;  // of the out-of-place form
  const bool apart;        // self's elements must have memory of their own
  const Check check;       // null: the worker's kernel looks at the numbers
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    auto* arguments = stack->data() + stack->size() - n;
    const auto& self = arguments[0].toTensor();
    if (!isMux(self)) {
      TORCH_CHECK(!anyMux(arguments, n) || self.dim() == 0, "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and mux:0!");
      return original.callBoxed(handle, keys, stack);
    }
    Writing writing;
    for (size_t i = 0; i < n; i++)  // now, so that the first operator to come is the out-of-place form
      if (arguments[i].isTensor() && isMux(arguments[i].toTensor())) fun::sync(arguments[i].toTensor());
    const auto kept = self;
    if (apart) at::assert_no_internal_overlap(kept);
    if (check) check(arguments);
    Normal normal(kept);
    const c10::DimVector sizes(kept.sizes()), strides(kept.strides());
    const c10::IntArrayRef sizesRef(sizes), stridesRef(strides);
    Expecting expecting({&sizesRef, &stridesRef, &name, kept.scalar_type()});
    original.callBoxed(handle, keys, stack);
  }
  static bool anyMux(const c10::IValue* arguments, size_t n) {
    for (size_t i = 0; i < n; i++)
      if (arguments[i].isTensor() && isMux(arguments[i].toTensor())) return true;
    return false;
  }
};

const std::unordered_set<std::string> kMayResize{"aten::resize_", "aten::resize_as_", "aten::set_", "aten::copy_", "aten::_resize_output_"};

// Writing the same number twice does no harm: torch lets these write to an expanded tensor.
const std::unordered_set<std::string> kOverlapsSafely{"aten::fill_", "aten::zero_", "aten::masked_fill_"};

void drop(Stack* stack, size_t n) { stack->erase(stack->end() - static_cast<long>(n), stack->end()); }

c10::IValue unwrapped(const c10::IValue& v) {
  if (v.isTensor()) return isMux(v.toTensor()) ? c10::IValue(inner(v.toTensor())) : v;
  if (!v.isTensorList()) return v;
  c10::List<at::Tensor> out;
  for (const auto& t : v.toTensorVector()) out.push_back(isMux(t) ? inner(t) : t);
  return out;
}

void write(const at::Tensor& target, const at::Tensor& value) {
  Normal normal(target);
  fun::replace_(target, value);
  fun::commit_update(target);
  fun::sync(target);
}

Check checkOf(const std::string& name) {
  const auto found = kChecks.find(name);
  return found == kChecks.end() ? nullptr : found->second;
}

// An operator with `out=`: the result must be castable to what is written to, in the words of the operator itself.
struct Out final : Original {
  Out(c10::SafeKernelFunction k, std::string n) : Original(std::move(k)), name(std::move(n)) {}
  const std::string name;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    const auto out = stack->back().toTensor();
    if (!isMux(out)) return original.callBoxed(handle, keys, stack);
    for (auto* v = stack->data() + stack->size() - n; v != stack->data() + stack->size(); v++)
      if (v->isTensor() && isMux(v->toTensor())) fun::sync(v->toTensor());
    Expecting expecting({nullptr, nullptr, &name, out.scalar_type()});
    original.callBoxed(handle, keys, stack);
  }
};

// native_batch_norm writes into its running statistics, though its schema doesn't say so.
struct BatchNorm final : Original {
  BatchNorm(c10::SafeKernelFunction k, c10::OperatorHandle h) : Original(std::move(k)), functional(h) {}
  const c10::OperatorHandle functional;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    constexpr size_t n = 8;
    auto* arguments = stack->data() + stack->size() - n;
    const auto tensor = [&](size_t i) { return arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor(); };
    const auto mean = tensor(3), variance = tensor(4);
    if (!isMux(tensor(0)) || !isMux(mean) || !isMux(variance) || !arguments[5].toBool()) return original.callBoxed(handle, keys, stack);
    Normal normal(mean);
    Stack results;
    for (size_t i = 0; i < n; i++) results.push_back(unwrapped(arguments[i]));
    {
      at::AutoDispatchSkipFunctionalize skip;
      functional.callBoxed(&results);
    }
    write(mean, results[3].toTensor());
    write(variance, results[4].toTensor());
    drop(stack, n);
    for (size_t i = 0; i < 3; i++) stack->push_back(wrapped(results[i].toTensor()));
  }
};

// The fused optimisers. torch's kernel takes an empty list among those that are written (no momentum, no amsgrad) for one of another device.
struct Fused final : Original {
  Fused(c10::SafeKernelFunction k, c10::OperatorHandle h) : Original(std::move(k)), functional(h) {}
  const c10::OperatorHandle functional;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto& schema = handle.schema().arguments();
    const size_t n = schema.size();
    const std::vector<c10::IValue> arguments(stack->end() - static_cast<long>(n), stack->end());
    const auto parameters = arguments[0].toTensorVector();
    if (parameters.empty() || !isMux(parameters[0])) return original.callBoxed(handle, keys, stack);
    Normal normal(parameters[0]);
    Stack results;
    bool scaled = false;
    for (size_t i = 0; i < n; i++) {
      results.push_back(unwrapped(arguments[i]));
      if (schema[i].name() == "grad_scale") scaled = arguments[i].isTensor() && arguments[i].toTensor().defined();
    }
    {
      at::AutoDispatchSkipFunctionalize skip;
      functional.callBoxed(&results);
    }
    size_t next = 0;
    for (size_t i = 0; i < n; i++) {
      if (!schema[i].alias_info() || !schema[i].alias_info()->isWrite()) continue;
      const auto values = results[next++].toTensorVector();
      if (schema[i].name() == "grads" && !scaled) continue;  // gradients are unscaled in place, and otherwise as they were
      const auto targets = arguments[i].toTensorVector();
      for (size_t j = 0; j < targets.size(); j++) write(targets[j], values[j]);
    }
    drop(stack, n);
  }
};

// An operator that is made of others. Above autograd torch takes it apart before functionalization sees it; without autograd (inference
// mode, kernels here) torch would hand it down whole, and its parts would write into bare handles.
struct Composite final : c10::OperatorKernel {
  explicit Composite(c10::SafeKernelFunction k) : parts(std::move(k)) {}
  c10::SafeKernelFunction parts;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) { parts.callBoxed(handle, keys, stack); }
};

// Its answer is a number of Python's: made of operators here, above the handles.
struct AllClose final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto* a = stack->data() + stack->size() - 5;
    if (!isMux(a[0].toTensor())) return original.callBoxed(handle, keys, stack);
    const bool close = at::isclose(a[0].toTensor(), a[1].toTensor(), a[2].toDouble(), a[3].toDouble(), a[4].toBool()).all().item<bool>();
    drop(stack, 5);
    stack->push_back(close);
  }
};

// The lengths live on the CPU, and so does the table of batch sizes. torch's own kernel packs the numbers of the rows there; the rows are
// then picked by them.
struct PackPadded final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto input = stack->end()[-3].toTensor(), lengths = stack->end()[-2].toTensor();
    const bool batchFirst = stack->end()[-1].toBool();
    if (!isMux(input) || !lengths.is_cpu() || input.dim() < 2) return original.callBoxed(handle, keys, stack);
    const auto rows = at::arange(input.size(0) * input.size(1), at::kLong).view({input.size(0), input.size(1), 1});
    const auto [picked, batchSizes] = at::_pack_padded_sequence(rows, lengths, batchFirst);
    auto data = input.flatten(0, 1).index_select(0, picked.flatten().to(input.device()));
    drop(stack, 3);
    stack->push_back(data);
    stack->push_back(batchSizes);
  }
};

}  // namespace

void registerFunctional() {
  Quiet quiet;
  auto& dispatcher = c10::Dispatcher::singleton();
  auto find = [&](const char* name, const char* overload = "") { return dispatcher.findSchemaOrThrow(name, overload); };
  replace<ToCopy>(find("aten::_to_copy"));
  replace<Lift>(find("aten::lift"));
  replace<Lift>(find("aten::lift_fresh"));
  replace<CopyInto>(find("aten::copy_"));
  replace<BatchNorm>(find("aten::native_batch_norm"), find("aten::_native_batch_norm_legit_functional"));
  replace<AllClose>(find("aten::allclose"));
  replace<PackPadded>(find("aten::_pack_padded_sequence"));
  for (const char* name : {"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"})
    for (const char* overload : {"", "tensor_lr"}) {
      const std::string full = std::string("aten::") + name;
      replace<Fused>(find((full + "_").c_str(), overload), find(full.c_str(), overload));
    }
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto& text = name.name;
    auto handle = name.getNamespace() == "aten" ? dispatcher.findSchema(name) : std::nullopt;
    if (!handle) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::Functionalize)) {
      if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) replaceFrom<Composite>(c10::DispatchKey::AutogradPrivateUse1, *handle);
      continue;
    }
    const auto& arguments = handle->schema().arguments();
    const auto writes = [](const c10::Argument& a) { return a.alias_info() && a.alias_info()->isWrite() && a.type()->kind() == c10::TypeKind::TensorType; };
    if (arguments.empty()) continue;
    const bool pointwise = handle->hasTag(at::Tag::pointwise);
    if (pointwise && arguments.back().is_out() && writes(arguments.back())) replace<Out>(*handle, text);
    if (text.size() < 3 || text.back() != '_' || text[text.size() - 2] == '_' || kMayResize.count(text) || handle->hasTag(at::Tag::inplace_view)) continue;
    if (writes(arguments[0])) replace<InPlace>(*handle, text.substr(0, text.size() - 1), pointwise && !kOverlapsSafely.count(text), checkOf(text));
  }
}

}  // namespace gt
