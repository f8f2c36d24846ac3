// A template, prepared once so that an instruction only patches inputs and literals into it: the operator's handle, a tree of argument
// nodes typed by the operator's schema, and what is refused. Reads Python objects (with the GIL); runs nothing.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "failure.hpp"
#include "gt_runtime/protocol/words.hpp"
#include "guard.hpp"
#include "layout.hpp"

namespace gt::worker {
namespace py = pybind11;

// One argument, or one item of a list.
struct Node {
  enum Kind : uint8_t {
    CONSTANT,       // value
    INPUT,          // the next input's tensor
    FLOAT,          // next literal: float64
    INT,            // next literal: int64
    COMPLEX,        // next two literals
    SCALAR_TENSOR,  // a 0-dim CPU tensor made of the next one or two literals
    GENERATOR,      // the worker's, seeded by the instruction
    TENSORS, MAYBE_TENSORS, INTS, FLOATS, BOOLS, SCALARS  // lists with something in them that travels with the instruction
  };
  Kind kind = CONSTANT;
  c10::IValue value;
  std::vector<Node> items;
  // SCALAR_TENSOR: what to make, and what was made last (the same literal often comes again)
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool wrapped = false;
  int64_t last[2] = {0, 0};
  at::Tensor made;
};

struct Template {
  std::string name;              // "aten::add.Tensor", for people
  std::optional<c10::OperatorHandle> op;
  std::optional<c10::OperatorHandle> view;  // of a *_copy operator: the operator that aliases
  struct Donor {
    int32_t input;  // its number
    bool written;   // else it is handed on as it is
  };
  std::optional<c10::OperatorHandle> twin;  // its in-place form (reuse.hpp), and the inputs that become its outputs, in their order
  std::vector<Donor> donors;
  std::vector<Node> arguments;
  std::vector<std::optional<Meta>> inputs, outputs;  // as the client sees them; outputs only where there is a twin, and once they are known
  int64_t input_count = 0, literal_words = 0, flags = 0;
  bool identity = false;         // the result is the first input itself
  bool layout_matters = false;   // as_strided and its like read the storage of their first input
  bool prefer_copy = false;      // the view was refused once: strides forbid it
  enum class Blank : uint8_t { NO, ALL, GROWN } blank = Blank::NO;  // memory that the kernel leaves as it finds it: zeros here
  std::vector<bool> shielded;    // tensor arguments that the kernel writes although its schema says it doesn't: they get a copy
  int64_t output_ids = 0;        // how many ids an instruction takes: one a returned tensor, defined or not
  int64_t output_bytes = 0;      // what the outputs will weigh; 0 if unknown or nothing new
  bool learns = false;           // the client doesn't know its outputs: the first run tells number and bytes
  Guard guard = nullptr;         // what the kernel takes on trust about its arguments
  FailurePtr refusal;            // never run: every instruction fails with this

  int64_t words() const { return 1 + input_count + literal_words + (flags & words::RANDOM ? 2 : 0); }
};

// A definition so wrong that the length of its instructions is unknown.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A definition that can be read but will not be run. `type` is a Python exception's name.
struct Refusal : std::runtime_error {
  std::string kind, type;
  Refusal(const char* kind_, const char* type_, const std::string& text) : std::runtime_error(text), kind(kind_), type(type_) {}
};

namespace detail {

inline bool isTagged(py::handle a) { return py::isinstance<py::list>(a); }

inline std::string tagOf(const py::list& a) {
  if (a.size() == 0 || !py::isinstance<py::str>(a[0])) throw Malformed("an argument list without a tag");
  return py::cast<std::string>(a[0]);
}

inline int64_t toInt(py::handle a, const char* what) {
  int overflow = 0;
  if (PyBool_Check(a.ptr()) || !PyLong_Check(a.ptr())) throw Malformed(std::string(what) + " must be an integer");
  const int64_t n = PyLong_AsLongLongAndOverflow(a.ptr(), &overflow);
  if (overflow != 0) throw Malformed(std::string(what) + " is beyond 64 bits");
  return n;
}

inline Meta readMeta(py::handle a) {
  if (!py::isinstance<py::list>(a) || py::len(a) != 4) throw Malformed("a meta is [dtype, sizes, strides, storage_offset]");
  auto fields = py::cast<py::list>(a);
  const int64_t dtype = toInt(fields[0], "a meta's dtype");
  if (!plainDtype(dtype)) throw Malformed("a meta with dtype number " + std::to_string(dtype) + ", which no value can have");
  Meta meta;
  meta.dtype = static_cast<c10::ScalarType>(dtype);
  for (int which : {1, 2}) {
    if (!py::isinstance<py::list>(fields[which])) throw Malformed("a meta's sizes and strides are lists");
    auto list = py::cast<py::list>(fields[which]);
    if (list.size() > kMaxDims) throw Malformed("a meta with more than 64 dimensions");
    for (auto item : list) (which == 1 ? meta.sizes : meta.strides).push_back(toInt(item, "a size or stride"));
  }
  meta.offset = toInt(fields[3], "a storage offset");
  if (!extent(meta.sizes, meta.strides, meta.offset)) throw Malformed("a meta whose sizes and strides are no layout");
  return meta;
}

// How many words an instruction needs: read off the tags alone, so that it holds for operators that are refused too.
inline void countWords(py::handle a, Template& t, int depth) {
  if (!isTagged(a)) return;
  if (depth > 4) throw Malformed("arguments nested too deep");
  auto list = py::cast<py::list>(a);
  const std::string tag = tagOf(list);
  if (tag == "t") {
    t.input_count += 1;
  } else if (tag == "f" || tag == "i") {
    t.literal_words += 1;
  } else if (tag == "z") {
    t.literal_words += 2;
  } else if (tag == "c") {
    if (list.size() != 3) throw Malformed("a scalar tensor is [\"c\", dtype, wrapped]");
    const int64_t dtype = toInt(list[1], "a scalar tensor's dtype");
    if (!plainDtype(dtype)) throw Malformed("a scalar tensor with dtype number " + std::to_string(dtype));
    t.literal_words += c10::isComplexType(static_cast<c10::ScalarType>(dtype)) ? 2 : 1;
  } else if (tag == "l") {
    for (size_t i = 1; i < list.size(); ++i) countWords(list[i], t, depth + 1);
  } else if (tag != "d" && tag != "g") {
    throw Malformed("an argument with the unknown tag '" + tag.substr(0, 16) + "'");
  }
}

[[noreturn]] inline void mismatch(const std::string& found, const c10::TypePtr& type) {
  throw Refusal(kinds::PROTOCOL, "TypeError", "an argument of type " + type->annotation_str() + " can't be made from " + found);
}

inline c10::IValue enumerated(int64_t n, c10::TypeKind kind) {
  const bool good = kind == c10::TypeKind::ScalarTypeType ? plainDtype(n)
      : kind == c10::TypeKind::LayoutType               ? n == static_cast<int64_t>(c10::Layout::Strided)
                                                        : n >= 0 && n < static_cast<int64_t>(c10::MemoryFormat::NumOptions);
  if (good) return n;
  const char* what = kind == c10::TypeKind::ScalarTypeType ? "dtype" : kind == c10::TypeKind::LayoutType ? "layout" : "memory format";
  throw Refusal(kinds::OPERATOR, "NotImplementedError", std::string("values on a worker can't have ") + what + " number " + std::to_string(n));
}

inline bool isIntKind(c10::TypeKind k) { return k == c10::TypeKind::IntType || k == c10::TypeKind::SymIntType; }
inline bool isEnumKind(c10::TypeKind k) {
  return k == c10::TypeKind::ScalarTypeType || k == c10::TypeKind::LayoutType || k == c10::TypeKind::MemoryFormatType;
}

class ArgumentReader {
 public:
  explicit ArgumentReader(c10::Device device) : device_(device) {}

  Node read(py::handle a, c10::TypePtr type, std::optional<int32_t> fixed) const {
    if (auto optional = type->cast<c10::OptionalType>()) {
      if (a.is_none()) return constant(c10::IValue());
      type = optional->getElementType();
    }
    if (isTagged(a)) return tagged(py::cast<py::list>(a), type);
    return constant(literal(a, type, fixed));
  }

 private:
  static Node constant(c10::IValue value) {
    Node node;
    node.value = std::move(value);
    return node;
  }

  static Node of(Node::Kind kind) {
    Node node;
    node.kind = kind;
    return node;
  }

  static c10::IValue literal(py::handle a, const c10::TypePtr& type, std::optional<int32_t> fixed) {
    const auto kind = type->kind();
    PyObject* p = a.ptr();
    if (kind == c10::TypeKind::ListType && fixed) {  // int[2] takes one int for both
      const auto element = type->castRaw<c10::ListType>()->getElementType();
      auto one = literal(a, element, std::nullopt);
      if (isIntKind(element->kind())) return c10::List<int64_t>(std::vector<int64_t>(*fixed, one.toInt()));
      if (element->kind() == c10::TypeKind::FloatType) return c10::List<double>(std::vector<double>(*fixed, one.toDouble()));
      if (element->kind() == c10::TypeKind::BoolType) {
        c10::List<bool> all;
        for (int32_t i = 0; i < *fixed; ++i) all.push_back(one.toBool());
        return all;
      }
    }
    if (PyBool_Check(p)) {
      if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType) return p == Py_True;
      if (isIntKind(kind)) return static_cast<int64_t>(p == Py_True);
      mismatch("a bool", type);
    }
    if (PyLong_Check(p)) {
      int overflow = 0;
      const int64_t n = PyLong_AsLongLongAndOverflow(p, &overflow);
      if (overflow != 0) mismatch("an integer beyond 64 bits", type);
      if (isEnumKind(kind)) return enumerated(n, kind);
      if (isIntKind(kind) || kind == c10::TypeKind::NumberType) return n;
      if (kind == c10::TypeKind::FloatType) return static_cast<double>(n);
      mismatch("an integer", type);
    }
    if (PyFloat_Check(p)) {
      if (kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType) return PyFloat_AsDouble(p);
      mismatch("a float", type);
    }
    if (PyUnicode_Check(p)) {
      if (kind == c10::TypeKind::StringType) return py::cast<std::string>(a);
      mismatch("a string", type);
    }
    mismatch(a.is_none() ? "None" : std::string(py::str(py::type::of(a).attr("__name__"))), type);
  }

  Node tagged(const py::list& list, const c10::TypePtr& type) const {
    const std::string tag = tagOf(list);
    const auto kind = type->kind();
    if (tag == "t") {
      if (kind != c10::TypeKind::TensorType) mismatch("an input value", type);
      return of(Node::INPUT);
    }
    if (tag == "c") {
      if (kind != c10::TypeKind::TensorType) mismatch("a scalar tensor", type);
      Node node = of(Node::SCALAR_TENSOR);
      node.dtype = static_cast<c10::ScalarType>(toInt(list[1], "dtype"));
      node.wrapped = PyObject_IsTrue(py::object(list[2]).ptr()) == 1;
      return node;
    }
    if (tag == "f") {
      if (kind != c10::TypeKind::FloatType && kind != c10::TypeKind::NumberType) mismatch("a float that travels", type);
      return of(Node::FLOAT);
    }
    if (tag == "i") {
      if (!isIntKind(kind) && kind != c10::TypeKind::NumberType) mismatch("an integer that travels", type);
      return of(Node::INT);
    }
    if (tag == "z") {
      if (kind != c10::TypeKind::NumberType && kind != c10::TypeKind::ComplexType) mismatch("a complex number", type);
      return of(Node::COMPLEX);
    }
    if (tag == "d") {
      if (kind != c10::TypeKind::DeviceObjType) mismatch("a device", type);
      return constant(device_);
    }
    if (tag == "g") {
      if (kind != c10::TypeKind::GeneratorType) mismatch("a generator", type);
      return of(Node::GENERATOR);
    }
    const auto* list_type = type->castRaw<c10::ListType>();
    if (list_type == nullptr) mismatch("a list", type);
    return listed(list, list_type->getElementType(), type);
  }

  Node listed(const py::list& list, const c10::TypePtr& element, const c10::TypePtr& type) const {
    Node node = of(Node::CONSTANT);
    bool constant_items = true;
    for (size_t i = 1; i < list.size(); ++i) {
      node.items.push_back(read(list[i], element, std::nullopt));
      constant_items = constant_items && node.items.back().kind == Node::CONSTANT;
    }
    switch (element->kind()) {
      case c10::TypeKind::TensorType: node.kind = Node::TENSORS; break;
      case c10::TypeKind::OptionalType:
        if (element->castRaw<c10::OptionalType>()->getElementType()->kind() != c10::TypeKind::TensorType) mismatch("a list", type);
        node.kind = Node::MAYBE_TENSORS;
        break;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType: node.kind = Node::INTS; break;
      case c10::TypeKind::FloatType: node.kind = Node::FLOATS; break;
      case c10::TypeKind::BoolType: node.kind = Node::BOOLS; break;
      case c10::TypeKind::NumberType: node.kind = Node::SCALARS; break;
      default: mismatch("a list", type);
    }
    if (constant_items && node.kind != Node::TENSORS && node.kind != Node::MAYBE_TENSORS) return constant(frozen(node));
    return node;
  }

  static c10::IValue frozen(const Node& node) {
    if (node.kind == Node::INTS) {
      c10::List<int64_t> all;
      for (const auto& item : node.items) all.push_back(item.value.toInt());
      return all;
    }
    if (node.kind == Node::FLOATS) {
      c10::List<double> all;
      for (const auto& item : node.items) all.push_back(item.value.toDouble());
      return all;
    }
    if (node.kind == Node::BOOLS) {
      c10::List<bool> all;
      for (const auto& item : node.items) all.push_back(item.value.toBool());
      return all;
    }
    c10::impl::GenericList all(c10::NumberType::get());
    for (const auto& item : node.items) all.push_back(item.value);
    return all;
  }

  c10::Device device_;
};

// Kernels that write into arguments although their schema doesn't say so: argument positions that get a copy.
inline const std::unordered_map<std::string, std::vector<int>>& secretWriters() {
  static const std::unordered_map<std::string, std::vector<int>> all = {
      {"aten::native_batch_norm", {3, 4}}, {"aten::cudnn_batch_norm", {3, 4}},  {"aten::miopen_batch_norm", {3, 4}},
      {"aten::batch_norm", {3, 4}},        {"aten::instance_norm", {3, 4}},     {"aten::_batch_norm_impl_index", {3, 4}},
      {"aten::batch_norm_gather_stats", {3, 4}}, {"aten::batch_norm_gather_stats_with_counts", {3, 4}},
      {"aten::batch_norm_update_stats", {1, 2}}};
  return all;
}

// Operators that reach beyond their arguments: files, other tensors' storages, the process.
inline bool denied(const std::string& name) {
  static const std::unordered_set<std::string> all = {
      "aten::from_file", "aten::_copy_from", "aten::_copy_from_and_resize", "aten::_cudnn_rnn_flatten_weight", "aten::record_stream",
      "aten::_pin_memory", "aten::pin_memory", "aten::data", "aten::set_data", "aten::_use_cudnn_rnn_flatten_weight",
      "aten::_nested_view_from_buffer_copy", "aten::_make_dual_copy", "aten::_fw_primal_copy", "aten::_cslt_compress",
      "aten::_lazy_clone", "aten::_backward", "aten::_add_batch_dim", "aten::_remove_batch_dim"};
  return all.count(name) != 0;
}

// PyTorch's own building blocks, which it calls with arguments it knows to be good: others bring the process down. No program's call
// arrives as one of these.
inline bool internal(const std::string& name) {
  static const std::unordered_set<std::string> all = {
      "aten::_batch_norm_no_update", "aten::_convert_indices_from_coo_to_csr", "aten::_convert_indices_from_csr_to_coo",
      "aten::_dyn_quant_matmul_4bit", "aten::_dyn_quant_pack_4bit_weight", "aten::_nnpack_spatial_convolution", "aten::_stack",
      "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward",
      "aten::_transform_bias_rescale_qkv", "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"};
  return all.count(name) != 0;
}

// Operators whose result is memory as it was found: on a worker that may hold what another program has left there.
inline Template::Blank blankOf(const std::string& base) {
  static const std::unordered_set<std::string> all = {"aten::empty",           "aten::empty_like",        "aten::empty_strided", "aten::new_empty",
                                                      "aten::new_empty_strided", "aten::empty_permuted"};
  if (base == "aten::resize" || base == "aten::resize_as") return Template::Blank::GROWN;
  return all.count(base) ? Template::Blank::ALL : Template::Blank::NO;
}

// Operators without results that only check something.
inline bool onlyChecks(const std::string& name) {
  static const std::unordered_set<std::string> all = {"aten::_linalg_check_errors", "aten::_assert_async", "aten::_assert_tensor_metadata"};
  return all.count(name) != 0;
}

inline bool returnsTensors(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    const auto& type = result.type();
    if (type->kind() == c10::TypeKind::TensorType) return true;
    if (const auto* list = type->castRaw<c10::ListType>(); list && list->getElementType()->kind() == c10::TypeKind::TensorType) return true;
  }
  return false;
}

inline void judge(const std::string& base, const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  auto refuse = [&](const std::string& why) {
    throw Refusal(kinds::REFUSED_OPERATOR, "NotImplementedError", "workers don't run " + base + ": " + why);
  };
  if (denied(base)) refuse("it reaches beyond its arguments");
  if (internal(base)) refuse("it is one of PyTorch's own building blocks");
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) refuse("it is made of others; send those");
  if (schema.is_mutable()) refuse("it writes into its arguments, and values never change; send its functional form");
  if (!returnsTensors(schema) && !onlyChecks(base)) refuse("it has no tensor among its results");
}

// The aliasing twin of `aten::NAME_copy`, if it is one and takes the same arguments.
inline std::optional<c10::OperatorHandle> viewOf(const std::string& base, const std::string& overload, const c10::FunctionSchema& schema) {
  constexpr std::string_view suffix = "_copy";
  // these two would leave the conjugate or negative bit for everybody after them to look at
  if (base == "aten::_conj_copy" || base == "aten::_neg_view_copy" || base == "aten::_to_copy") return std::nullopt;
  if (base.size() <= suffix.size() || base.compare(base.size() - suffix.size(), suffix.size(), suffix) != 0) return std::nullopt;
  auto view = c10::Dispatcher::singleton().findSchema({base.substr(0, base.size() - suffix.size()), overload});
  if (!view) return std::nullopt;
  const auto& twin = view->schema();
  if (twin.is_mutable() || twin.arguments().size() != schema.arguments().size()) return std::nullopt;
  for (size_t i = 0; i < twin.arguments().size(); ++i)
    if (twin.arguments()[i].name() != schema.arguments()[i].name()) return std::nullopt;
  const bool aliases = !twin.arguments().empty() && twin.arguments()[0].alias_info() != nullptr;
  return aliases ? view : std::nullopt;
}

inline void resolve(Template& t, const std::string& base, const std::string& overload, const py::list& arguments, c10::Device device) {
  auto op = base.rfind("aten::", 0) == 0 ? c10::Dispatcher::singleton().findSchema({base, overload}) : std::nullopt;
  if (!op) throw Refusal(kinds::REFUSED_OPERATOR, "NotImplementedError", "workers know no operator " + t.name);
  const auto& schema = op->schema();
  judge(base, *op);
  const auto& expected = schema.arguments();
  if (arguments.size() > expected.size())
    throw Refusal(kinds::PROTOCOL, "TypeError", t.name + " takes " + std::to_string(expected.size()) + " arguments, not " +
        std::to_string(arguments.size()));
  const ArgumentReader reader(device);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i < arguments.size()) {
      t.arguments.push_back(reader.read(arguments[i], expected[i].real_type(), expected[i].N()));
    } else if (expected[i].default_value()) {
      t.arguments.emplace_back();
      t.arguments.back().value = *expected[i].default_value();
    } else {
      throw Refusal(kinds::PROTOCOL, "TypeError", t.name + " needs its argument '" + expected[i].name() + "'");
    }
  }
  t.op = op;
  t.identity = base == "aten::alias_copy" || base == "aten::detach_copy" || base == "aten::lift_fresh_copy" || base == "aten::lift_fresh" ||
      base == "aten::lift" || base == "aten::alias" || base == "aten::detach";
  if (t.identity && (t.arguments.empty() || t.arguments[0].kind != Node::INPUT)) t.identity = false;
  t.view = viewOf(base, overload, schema);
  t.layout_matters = base == "aten::as_strided" || base == "aten::as_strided_copy" || base == "aten::as_strided_scatter" ||
      base == "aten::_reshape_alias" || base == "aten::_reshape_alias_copy";
  if (base == "aten::_reshape_alias" || base == "aten::_reshape_alias_copy") {
    // the same arguments but for the offset; unlike _reshape_alias, as_strided checks that it stays inside the storage
    t.view = t.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
    t.arguments.emplace_back();
  }
  t.blank = blankOf(base);
  t.guard = guardOf(base);
  if (auto it = secretWriters().find(base); it != secretWriters().end()) {
    t.shielded.resize(expected.size());
    for (int i : it->second)
      if (static_cast<size_t>(i) < t.shielded.size()) t.shielded[i] = true;
  }
}

inline void readOutputs(Template& t, py::handle metas) {
  if (metas.is_none()) {  // told by the first run; if that fails, lists count as nothing
    t.learns = true;
    if (t.op)
      for (const auto& result : t.op->schema().returns()) t.output_ids += result.type()->kind() == c10::TypeKind::TensorType;
    else
      t.output_ids = 1;
    return;
  }
  if (!py::isinstance<py::list>(metas)) throw Malformed("output metas are a list or None");
  const bool dynamic = t.flags & words::DYNAMIC;
  int64_t bytes = 0;
  for (auto item : py::cast<py::list>(metas)) {
    t.output_ids += 1;
    t.outputs.emplace_back();
    if (item.is_none() || dynamic) continue;  // of a dynamic one only the number counts: sizes depend on data
    t.outputs.back() = readMeta(item);
    const Meta& meta = *t.outputs.back();
    bytes += *extent(meta.sizes, meta.strides, 0) * static_cast<int64_t>(c10::elementSize(meta.dtype));
    if (bytes > kMaxElements) bytes = kMaxElements;
  }
  const bool aliases = t.view || t.identity;
  t.output_bytes = dynamic || aliases ? 0 : bytes;
}

}  // namespace detail

// The id a definition is for. Throws Malformed.
inline int64_t definitionId(const py::list& definition) {
  if (definition.size() != 7) throw Malformed("a definition has 7 fields, this one has " + std::to_string(definition.size()));
  return detail::toInt(definition[0], "a template's id");
}

// Throws Malformed if instructions of the template couldn't even be skipped; what can be skipped but not run has a `refusal`.
inline std::unique_ptr<Template> prepare(const py::list& definition, c10::Device device) {
  auto t = std::make_unique<Template>();
  for (int i : {1, 2})
    if (!py::isinstance<py::str>(definition[i])) throw Malformed("an operator's name and overload are strings");
  std::string base = py::cast<std::string>(definition[1]), overload = py::cast<std::string>(definition[2]);
  if (base.find("::") == std::string::npos) base = "aten::" + base;
  if (overload == "default") overload.clear();
  t->name = base + "." + (overload.empty() ? "default" : overload);
  if (!py::isinstance<py::list>(definition[3]) || !py::isinstance<py::list>(definition[4]))
    throw Malformed("arguments and input metas are lists");
  auto arguments = py::cast<py::list>(definition[3]);
  t->flags = detail::toInt(definition[6], "a template's flags");
  for (auto a : arguments) detail::countWords(a, *t, 0);
  for (auto meta : py::cast<py::list>(definition[4]))
    t->inputs.push_back(meta.is_none() ? std::nullopt : std::optional<Meta>(detail::readMeta(meta)));
  if (static_cast<int64_t>(t->inputs.size()) != t->input_count)
    throw Malformed(t->name + " has " + std::to_string(t->input_count) + " inputs and " + std::to_string(t->inputs.size()) + " metas for them");
  auto refuse = [&](std::string kind, std::string type, std::string message) {
    t->refusal = std::make_shared<Failure>();
    t->refusal->kind = std::move(kind);
    t->refusal->type = std::move(type);
    t->refusal->message = std::move(message);
  };
  try {
    detail::resolve(*t, base, overload, arguments, device);
  } catch (const Refusal& e) {
    refuse(e.kind, e.type, e.what());
  } catch (const c10::Error& e) {
    refuse(kinds::PROTOCOL, "RuntimeError", e.what_without_backtrace());
  }
  detail::readOutputs(*t, definition[5]);
  return t;
}

}  // namespace gt::worker
