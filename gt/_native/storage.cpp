// Storages of mux tensors. A storage is functionalization's: it holds a base value and what was written through views. It has no memory,
// but it is an identity: tensors that share one are views of one base, so a tensor can be made of a storage, and a storage of bytes.
#include "storage.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include "functional.hpp"

namespace gt {
namespace {

using at::functionalization::FunctionalStorageImpl;
using torch::jit::Stack;
namespace fun = at::functionalization::impl;

// A storage made of bytes that were read from a file: the first tensor that is made of it decides what its base is.
struct Loaded final : FunctionalStorageImpl {
  using FunctionalStorageImpl::FunctionalStorageImpl;
  bool raw = true;
};

FunctionalStorageImpl& implOf(const c10::Storage& storage) {
  auto* impl = dynamic_cast<FunctionalStorageImpl*>(storage.unsafeGetStorageImpl());
  TORCH_CHECK(impl && impl->base().device().type() == kMux, "expected the storage of a mux tensor, found one on ", storage.device());
  impl->apply_updates();
  return *impl;
}

bool dense(const at::Tensor& base) { return base.storage_offset() == 0 && base.is_non_overlapping_and_dense(); }

// The whole base of a storage, as a tensor that shares it.
at::Tensor whole(const c10::Storage& storage) {
  auto tensor = wrapped(implOf(storage).base());
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  fun::sync(tensor);
  return tensor;
}

// Bytes from a file become the tensor they were: later writes then need no way back through a view of bytes.
void settle(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto* loaded = dynamic_cast<Loaded*>(storage.unsafeGetStorageImpl());
  if (!loaded || !loaded->raw) return;
  loaded->raw = false;
  const auto& bytes = loaded->base();
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes.numel() == 0 || bytes.numel() % item) return;
  at::AutoDispatchSkipFunctionalize skip;
  auto typed = dtype == bytes.scalar_type() ? bytes : at::view_copy(bytes, dtype);
  const bool all = offset == 0 && c10::multiply_integers(sizes) * item == bytes.numel();
  if (all && at::empty_strided(sizes, strides, bytes.options().device(c10::kMeta)).is_non_overlapping_and_dense())
    typed = at::as_strided_copy(typed, sizes, strides, 0);
  loaded->add_update(typed, {});
  loaded->apply_updates();
}

// Set while viewOf calls as_strided on what lies from the storage's beginning.
thread_local bool direct = false;

at::Tensor viewOf(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  struct Direct {
    const bool before = std::exchange(direct, true);
    ~Direct() { direct = before; }
  } guard;
  implOf(storage);
  settle(storage, dtype, sizes, strides, offset);
  auto tensor = whole(storage);
  if (tensor.scalar_type() != dtype) {
    TORCH_CHECK(dense(tensor), "a storage with gaps can't be seen as another dtype on mux");
    if (tensor.dim() != 1) tensor = at::as_strided(tensor, {tensor.numel()}, {1}, 0);
    tensor = tensor.view(dtype);
  }
  if (tensor.sizes() == sizes && tensor.strides() == strides && tensor.storage_offset() == offset) return tensor;
  return at::as_strided(tensor, sizes, strides, offset);
}

// Tensor.set_(storage), Tensor.set_(storage, offset, size, stride)
struct SetStorage final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t n = handle.schema().arguments().size();
    auto* arguments = stack->data() + stack->size() - n;
    const auto self = arguments[0].toTensor();
    const auto storage = arguments[1].toStorage();
    if (!isMux(self) && storage.device().type() != kMux) return original.callBoxed(handle, keys, stack);
    TORCH_CHECK(self.device().type() == storage.device().type(), "Attempted to set the storage of a tensor on device \"", self.device(),
                "\" to a storage on different device \"", storage.device(), "\".  This is no longer allowed; the devices must match.");
    const auto item = static_cast<int64_t>(self.element_size());
    std::vector<int64_t> sizes{static_cast<int64_t>(storage.nbytes()) / item}, strides;
    int64_t offset = 0;
    if (n == 5) {
      offset = arguments[2].toInt(), sizes = arguments[3].toIntVector(), strides = arguments[4].toIntVector();
    }
    if (strides.size() != sizes.size()) {
      const auto dense = c10::contiguous_strides(sizes);
      strides.assign(dense.begin(), dense.end());
    }
    const auto view = viewOf(storage, self.scalar_type(), sizes, strides, offset);
    fun::unsafeGetFunctionalWrapper(self)->set__impl(fun::unsafeGetFunctionalWrapper(view));
    stack->erase(stack->end() - static_cast<long>(n), stack->end());
    stack->push_back(self);
  }
};

// as_strided counts from the beginning of the storage, whatever view it is called on.
struct AsStrided final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    auto* arguments = stack->data() + stack->size() - 4;
    const auto self = arguments[0].toTensor();
    if (direct || !isMux(self) || fun::isBaseTensor(self)) return original.callBoxed(handle, keys, stack);
    const auto sizes = arguments[1].toIntVector(), strides = arguments[2].toIntVector();
    const auto offset = arguments[3].isNone() ? self.storage_offset() : arguments[3].toInt();
    fun::sync(self);
    auto view = viewOf(self.storage(), self.scalar_type(), sizes, strides, offset);
    stack->erase(stack->end() - 4, stack->end());
    stack->push_back(std::move(view));
  }
};

struct IsSetTo final : Original {
  using Original::Original;
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto one = stack->end()[-2].toTensor(), two = stack->end()[-1].toTensor();
    if (!isMux(one) || !isMux(two)) return original.callBoxed(handle, keys, stack);
    const bool same = one.storage().unsafeGetStorageImpl() == two.storage().unsafeGetStorageImpl() && one.storage_offset() == two.storage_offset() &&
                      one.sizes() == two.sizes() && one.strides() == two.strides();
    stack->erase(stack->end() - 2, stack->end());
    stack->push_back(same);
  }
};

c10::Storage fromBytes(const at::Tensor& bytes) {
  TORCH_CHECK(bytes.is_cpu() && bytes.scalar_type() == at::kByte && bytes.dim() == 1, "a storage is made of a one-dimensional CPU tensor of bytes");
  return c10::Storage(c10::make_intrusive<Loaded>(uploadTensor(bytes)));
}

// New bytes for a storage that was made of bytes. Tensors may have been made of it before: the old file format has the bytes at its end.
void writeBytes(const c10::Storage& storage, const at::Tensor& bytes) {
  auto* loaded = dynamic_cast<Loaded*>(storage.unsafeGetStorageImpl());
  TORCH_CHECK(loaded, "internal error: only a mux storage that torch.load has made is filled from a file");
  loaded->apply_updates();
  const auto base = loaded->base();
  at::AutoDispatchSkipFunctionalize skip;
  auto value = uploadTensor(bytes);
  if (base.scalar_type() != value.scalar_type()) value = at::view_copy(value, base.scalar_type());
  if (base.sizes() != value.sizes() || base.strides() != value.strides()) value = at::as_strided_copy(value, base.sizes(), base.strides(), 0);
  loaded->add_update(value, {});
  loaded->apply_updates();
}

}  // namespace

void registerStorage() {
  auto& dispatcher = c10::Dispatcher::singleton();
  replace<SetStorage>(dispatcher.findSchemaOrThrow("aten::set_", "source_Storage"));
  replace<SetStorage>(dispatcher.findSchemaOrThrow("aten::set_", "source_Storage_storage_offset"));
  replace<AsStrided>(dispatcher.findSchemaOrThrow("aten::as_strided", ""));
  replace<IsSetTo>(dispatcher.findSchemaOrThrow("aten::is_set_to", ""));
}

void bindStorage(pybind11::module_& m) {
  m.def("storage_tensor", &whole, "The whole value that a mux storage holds, as a tensor that shares it.");
  m.def("storage_write", &writeBytes, "Gives a storage that storage_from has made new bytes.");
  m.def("storage_from", &fromBytes, "A mux storage holding the bytes of a one-dimensional CPU tensor.");
}

}  // namespace gt
