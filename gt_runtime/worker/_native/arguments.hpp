// From a template and an instruction's inputs and literals to the stack that an operator is called with.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <cstring>
#include <vector>

#include "definition.hpp"

namespace gt::worker {

class Arguments {
 public:
  // Puts the arguments of an instruction of `t` on the stack. `literals`: as many words as the template has.
  void fill(Template& t, const std::vector<const at::Tensor*>& inputs, const int64_t* literals, c10::Device device,
            std::vector<c10::IValue>& stack) {
    inputs_ = inputs.data();
    literals_ = literals;
    device_ = device;
    stack.clear();
    for (auto& node : t.arguments) {
      if (node.kind == Node::CONSTANT)
        stack.push_back(node.value);
      else if (node.kind == Node::INPUT)
        stack.emplace_back(**inputs_++);
      else
        stack.push_back(build(node));
    }
    for (size_t i = 0; i < t.shielded.size(); ++i)
      if (t.shielded[i] && stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = stack[i].toTensor().clone();
    if (C10_UNLIKELY(t.guard != nullptr)) t.guard(stack);
  }

 private:
  double nextDouble() {
    double value;
    std::memcpy(&value, literals_++, sizeof value);
    return value;
  }

  c10::IValue build(Node& node) {
    switch (node.kind) {
      case Node::CONSTANT: return node.value;
      case Node::INPUT: return **inputs_++;
      case Node::FLOAT: return nextDouble();
      case Node::INT: return *literals_++;
      case Node::COMPLEX: {
        const double real = nextDouble(), imaginary = nextDouble();
        return c10::complex<double>(real, imaginary);
      }
      case Node::SCALAR_TENSOR: return scalarTensor(node);
      case Node::GENERATOR: return at::globalContext().defaultGenerator(device_);
      case Node::TENSORS: {
        c10::List<at::Tensor> all;
        all.reserve(node.items.size());
        for (auto& item : node.items) all.push_back(build(item).toTensor());
        return all;
      }
      case Node::MAYBE_TENSORS: {
        c10::List<std::optional<at::Tensor>> all;
        all.reserve(node.items.size());
        for (auto& item : node.items) all.push_back(build(item).toOptional<at::Tensor>());
        return all;
      }
      case Node::INTS: return list<int64_t>(node, [](const c10::IValue& v) { return v.toInt(); });
      case Node::FLOATS:
        return list<double>(node, [](const c10::IValue& v) { return v.isInt() ? static_cast<double>(v.toInt()) : v.toDouble(); });
      case Node::BOOLS: return list<bool>(node, [](const c10::IValue& v) { return v.toBool(); });
      case Node::SCALARS: {
        c10::impl::GenericList all(c10::NumberType::get());
        for (auto& item : node.items) all.push_back(build(item));
        return all;
      }
    }
    TORCH_INTERNAL_ASSERT(false, "unreachable");
  }

  template <class T, class F>
  c10::IValue list(Node& node, F&& take) {
    c10::List<T> all;
    all.reserve(node.items.size());
    for (auto& item : node.items) all.push_back(take(build(item)));
    return all;
  }

  at::Tensor scalarTensor(Node& node) {
    const bool complex = c10::isComplexType(node.dtype);
    const int64_t words[2] = {literals_[0], complex ? literals_[1] : 0};
    literals_ += complex ? 2 : 1;
    if (node.made.defined() && words[0] == node.last[0] && words[1] == node.last[1]) return node.made;
    double parts[2];
    std::memcpy(parts, words, sizeof parts);
    const auto options = at::TensorOptions().dtype(node.dtype);
    at::Tensor made;
    if (complex)
      made = at::scalar_tensor(c10::complex<double>(parts[0], parts[1]), options);
    else if (c10::isFloatingType(node.dtype))
      made = at::scalar_tensor(parts[0], options);
    else
      made = at::scalar_tensor(words[0], options);
    if (node.wrapped) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    std::memcpy(node.last, words, sizeof words);
    return node.made = made;
  }

  // what is left of the instruction
  const at::Tensor* const* inputs_ = nullptr;
  const int64_t* literals_ = nullptr;
  c10::Device device_{c10::kCPU};
};

}  // namespace gt::worker
