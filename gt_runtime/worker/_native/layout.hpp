// Metas and memory layouts: what a client says of a tensor, checked, and tensors made to look like it.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace gt::worker {

// [dtype, sizes, strides, storage_offset]; sizes and strides count elements. Only checkMeta makes one from what came off a wire.
struct Meta {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

constexpr size_t kMaxDims = 64;              // as in PyTorch
constexpr int64_t kMaxElements = int64_t(1) << 56;  // no machine has more; keeps every product below from overflowing

inline bool plainDtype(int64_t number) {
  if (number < 0 || number >= static_cast<int64_t>(c10::ScalarType::NumOptions)) return false;
  const auto dtype = static_cast<c10::ScalarType>(number);
  if (dtype == c10::ScalarType::Undefined || c10::isQIntType(dtype) || c10::isBitsType(dtype)) return false;
  return true;
}

inline int64_t numel(c10::IntArrayRef sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Elements from the start of the storage to the last one that is touched, or nothing if the numbers are no layout at all (negative,
// or beyond any memory).
inline std::optional<int64_t> extent(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (sizes.size() != strides.size() || sizes.size() > kMaxDims || offset < 0 || offset > kMaxElements) return std::nullopt;
  __int128 last = offset, count = 1;
  bool empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0 || sizes[d] > kMaxElements || strides[d] > kMaxElements) return std::nullopt;
    if (sizes[d] == 0) {
      empty = true;
      continue;
    }
    count *= sizes[d];
    last += static_cast<__int128>(sizes[d] - 1) * strides[d];
    if (count > kMaxElements || last > kMaxElements) return std::nullopt;
  }
  return empty ? 0 : static_cast<int64_t>(last) + 1;
}

inline std::vector<int64_t> contiguousStrides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// Strides of dimensions of size 1 mean nothing.
inline bool sameStrides(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && a[d] != b[d]) return false;
  return true;
}

// Offsets don't count: a client's belong to its own storages.
inline bool liesAs(const at::Tensor& tensor, const Meta& meta) {
  return tensor.sizes() == c10::IntArrayRef(meta.sizes) && sameStrides(meta.sizes, tensor.strides(), meta.strides);
}

// True if no two indices can name one element: each stride is larger than all that the smaller ones reach. (Not necessary, but what is
// missed only takes the slower way in layOut.)
inline bool distinct(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) dims.emplace_back(strides[d], sizes[d]);
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (auto [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

// A new tensor on `device` with the elements of `source` in the given layout. Gaps are zero. Overlapping layouts (expanded tensors)
// hold each element once.
inline at::Tensor layOut(const at::Tensor& source, c10::IntArrayRef strides, int64_t offset, c10::Device device) {
  const auto sizes = source.sizes();
  const auto size = extent(sizes, strides, offset);
  TORCH_CHECK(size.has_value(), "no such layout: sizes ", sizes, ", strides ", strides, ", offset ", offset);
  const auto options = source.options().device(device);
  if (*size == 0) return at::empty_strided(sizes, strides, options);
  const bool full = *size == source.numel() && offset == 0;
  at::Tensor flat = full ? at::empty({*size}, options) : at::zeros({*size}, options);
  at::Tensor result = flat.as_strided(sizes, strides, offset);
  at::Tensor from = source, to = result;
  for (int64_t d = 0; d < source.dim(); ++d)
    if (strides[d] == 0 && sizes[d] > 1) {
      from = from.narrow(d, 0, 1);
      to = to.narrow(d, 0, 1);
    }
  if (distinct(to.sizes(), to.strides())) {
    to.copy_(from);
    return result;
  }
  at::Tensor index = at::full({}, offset, options.dtype(at::kLong));
  for (int64_t d = 0; d < to.dim(); ++d) {
    std::vector<int64_t> shape(to.dim(), 1);
    shape[d] = to.size(d);
    index = index + at::arange(to.size(d), options.dtype(at::kLong)).mul(to.stride(d)).reshape(shape);
  }
  flat.index_put_({index.reshape({-1})}, from.to(device).reshape({-1}));
  return result;
}

inline Meta metaOf(const at::Tensor& tensor) {
  return Meta{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
}

}  // namespace gt::worker
