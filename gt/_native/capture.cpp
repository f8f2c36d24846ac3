// Capture: one boxed kernel for every ATen operator on PrivateUse1. Functionalization above it has already turned views and in-place
// writes into pure calls, so a call is an operator, handles, and scalars. The call without its ids is a template's key; a hit appends a
// few words to the batch under way, a miss asks the worker (through Python) what the call gives.
#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <unordered_set>

#include "gt_runtime/protocol/words.hpp"
#include "msgpack.hpp"
#include "stream.hpp"

namespace gt {

thread_local Inplace inplace;
thread_local bool normalValues = false;

namespace {

using torch::jit::Stack;

// What is known of an argument from the schema alone.
enum class Kind : uint8_t { Plain, Float, Scalar, Generator, Pin };

struct Operator {
  std::string name, full;  // "aten::add", "aten::add.Tensor"
  std::string overload;
  std::vector<Kind> kinds;
  std::vector<std::string> arguments;
  bool random = false;      // draws numbers
  bool dynamic = false;     // output sizes depend on data
  bool keyed = false;       // its floats decide sizes: they belong to the key
  bool mutates = false;     // never legal here
  bool cpuIndices = false;  // index tensors may live on the CPU, as on CUDA
  bool tensorsOnly = true;  // every return is a tensor or a list of tensors
  bool view = false;        // the copying form of a view
  bool absolute = false;    // as_strided
  bool identity = false;    // gives its input: no instruction, the handle stands for both
};

// A value's handle. In inference mode a view of a normal tensor, and what is written into one, is no inference tensor.
at::Tensor makeHandle(int64_t id, const Meta* meta, int64_t offset, uint32_t life, bool normal) {
  std::optional<c10::InferenceMode> off;
  if (C10_UNLIKELY(normal)) off.emplace(false);
  return at::Tensor(c10::make_intrusive<Mux>(id, meta, offset, life));
}

Kind kindOf(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  if (argument.name() == "pin_memory") return Kind::Pin;
  switch (type->kind()) {
    case c10::TypeKind::NumberType: return Kind::Scalar;
    case c10::TypeKind::FloatType: return Kind::Float;
    case c10::TypeKind::GeneratorType: return Kind::Generator;
    default: return Kind::Plain;
  }
}

bool isTensorType(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  if (auto optional = type->cast<c10::OptionalType>()) return isTensorType(optional->getElementType());
  if (auto list = type->cast<c10::ListType>()) return isTensorType(list->getElementType());
  return false;
}

// Operators that draw random numbers without a Generator argument and without the tag.
const std::unordered_set<std::string> kRandom{"aten::native_dropout", "aten::_fused_dropout", "aten::rrelu_with_noise_functional"};
// Float arguments that decide an output's size.
const std::unordered_set<std::string> kKeyed{"aten::arange", "aten::range"};
const std::unordered_set<std::string> kCpuIndices{"aten::index", "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index",
                                                  "aten::_unsafe_index_put", "aten::_unsafe_masked_index",
                                                  "aten::_unsafe_masked_index_put_accumulate"};
// Sizes that depend on data though the tag is missing.
const std::unordered_set<std::string> kDynamic{"aten::linalg_lstsq", "aten::_embedding_bag", "aten::_embedding_bag_forward_only",
                                               "aten::segment_reduce", "aten::_ctc_loss"};

Operator describe(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  Operator op;
  op.name = schema.name();
  op.overload = schema.overload_name();
  op.full = op.overload.empty() ? op.name + ".default" : op.name + "." + op.overload;
  for (const auto& argument : schema.arguments()) {
    op.kinds.push_back(kindOf(argument));
    op.arguments.push_back(argument.name());
    if (argument.alias_info() && argument.alias_info()->isWrite()) op.mutates = true;
  }
  for (const auto& r : schema.returns()) op.tensorsOnly &= isTensorType(r.type());
  op.random = handle.hasTag(at::Tag::nondeterministic_seeded) || kRandom.count(op.name);
  op.dynamic = handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output) || kDynamic.count(op.name);
  op.keyed = kKeyed.count(op.name);
  op.view = op.name.size() > 5 && op.name.compare(op.name.size() - 5, 5, "_copy") == 0 && op.name != "aten::_to_copy";
  op.absolute = op.name == "aten::as_strided_copy";
  op.identity = op.name == "aten::detach_copy";
  op.cpuIndices = kCpuIndices.count(op.name);
  return op;
}

// The key of a call and what travels beside it. One a thread: no allocation once warm.
struct Call {
  std::string key;
  std::vector<int64_t> inputs, literals;
  std::vector<at::Tensor> kept;  // handles made on the way (CPU index tensors)
  const at::Tensor* first = nullptr;
  std::optional<at::Generator> generator;
  c10::optional<c10::Device> foreign;  // a device argument that isn't mux

  void clear() {
    key.clear(), inputs.clear(), literals.clear(), kept.clear();
    first = nullptr, generator.reset(), foreign.reset();
  }
  template <class T>
  void raw(const T& v) { key.append(reinterpret_cast<const char*>(&v), sizeof v); }
  void real(double d) {
    int64_t bits;
    std::memcpy(&bits, &d, 8);
    literals.push_back(bits);
  }
};

Mux* handleOf(const at::Tensor& t, const Operator& op) {
  auto* impl = t.unsafeGetTensorImpl();
  if (C10_UNLIKELY(impl->key_set().has(c10::DispatchKey::Functionalize))) {
    // A functional wrapper below functionalization: a kernel of torch's called us with an outer tensor.
    at::functionalization::impl::sync(t);
    impl = at::functionalization::impl::unsafeGetFunctionalWrapper(t)->value().unsafeGetTensorImpl();
  }
  auto* mux = dynamic_cast<Mux*>(impl);
  if (!mux) notSupported(op.full + " on this kind of mux tensor", "it is not a plain dense tensor", "use dense tensors on mux");
  return mux;
}

bool isHandle(const c10::IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return false;
  const auto* mux = dynamic_cast<const Mux*>(v.toTensor().unsafeGetTensorImpl());
  return mux && mux->life == Stream::the().life;
}

void putScalarTensor(Call& call, const at::Tensor& t) {
  const auto dtype = t.scalar_type();
  call.key.push_back('c');
  call.key.push_back(static_cast<char>(dtype));
  call.key.push_back(t.unsafeGetTensorImpl()->is_wrapped_number() ? '1' : '0');
  if (dtype == c10::kDouble && !t.is_neg()) return call.real(*t.const_data_ptr<double>());  // a Python number, nearly always
  if (dtype == c10::kLong && !t.is_neg()) return call.literals.push_back(*t.const_data_ptr<int64_t>());
  const auto value = t.item();
  if (value.isComplex()) call.real(value.toComplexDouble().real()), call.real(value.toComplexDouble().imag());
  else if (value.isFloatingPoint()) call.real(value.toDouble());
  else call.literals.push_back(value.isBoolean() ? value.toBool() : value.toLong());
}

void put(Call& call, const Operator& op, size_t index, const at::Tensor& t) {
  if (!t.defined()) { call.key.push_back('n'); return; }
  if (C10_LIKELY(t.device().type() == kMux)) {
    auto* mux = handleOf(t, op);
    TORCH_CHECK(mux->life == Stream::the().life, "this mux tensor belongs to a session that has ended (gt.shutdown, a lost cluster or a new gt.connect); make it again");
    if (!call.first) call.first = &t;
    call.key.push_back('t');
    call.raw(mux->meta->number);
    call.inputs.push_back(mux->id);
    return;
  }
  if (t.device().is_cpu() && t.layout() == c10::kStrided) {
    if (t.dim() == 0) return putScalarTensor(call, t);
    if (op.cpuIndices && index == 1) {
      call.kept.push_back(uploadTensor(t));
      return put(call, op, index, call.kept.back());
    }
  }
  if (t.layout() != c10::kStrided) notSupported("a " + std::string(c10::toString(t.options().computeDispatchKey())) + " tensor together with mux tensors", "sparse and other layouts stay on their device", "use dense tensors");
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, mux:0 and ", t.device(),
              "! (when checking argument for argument ", op.arguments[index], " in method ", op.full, ")");
}

void put(Call& call, const Operator& op, size_t index, const c10::IValue& v) {
  const Kind kind = op.kinds[index];
  if (v.isTensor()) return put(call, op, index, v.toTensor());
  if (v.isNone()) { call.key.push_back('n'); return; }
  if (kind == Kind::Pin) { call.key.push_back('n'); return; }
  if (v.isInt()) {
    if (kind == Kind::Scalar && !op.keyed) { call.key.push_back('I'), call.literals.push_back(v.toInt()); return; }
    call.key.push_back('i'), call.raw(v.toInt());
    return;
  }
  if (v.isDouble()) {
    if (op.keyed) { call.key.push_back('d'), call.raw(v.toDouble()); return; }
    call.key.push_back('f'), call.real(v.toDouble());
    return;
  }
  if (v.isBool()) { call.key.push_back(v.toBool() ? '1' : '0'); return; }
  if (v.isComplexDouble()) {
    call.key.push_back('z'), call.real(v.toComplexDouble().real()), call.real(v.toComplexDouble().imag());
    return;
  }
  if (v.isIntList()) {
    auto list = v.toIntVector();
    call.key.push_back('['), call.raw(list.size()), call.key.append(reinterpret_cast<const char*>(list.data()), 8 * list.size());
    return;
  }
  if (v.isTensorList()) {
    auto list = v.toTensorList();
    call.key.push_back('T'), call.raw(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      at::Tensor t = list.get(i);
      const auto* first = call.first;
      put(call, op, index, t);
      call.first = first;  // t is a temporary
    }
    return;
  }
  if (v.isString()) { call.key.push_back('s'), call.raw(v.toStringRef().size()), call.key += v.toStringRef(); return; }
  if (v.isDevice()) {
    call.key.push_back('D');
    TORCH_CHECK(v.toDevice().type() != kMux || v.toDevice().index() <= 0, "mux has one device, mux:0, not ", v.toDevice(), ": where work runs is the cluster's matter");
    if (v.toDevice().type() != kMux) call.foreign = v.toDevice();
    return;
  }
  if (v.isGenerator()) { call.key.push_back('g'), call.generator = v.toGenerator(); return; }
  if (v.isList()) {  // optional tensors, doubles, bools, scalars
    auto list = v.toList();
    call.key.push_back('L'), call.raw(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      const auto* first = call.first;
      put(call, op, index, list.get(i));
      call.first = first;
    }
    return;
  }
  notSupported(op.full, "an argument of type " + v.tagKind() + " can't travel", "use another form of this operation");
}

// The same walk as put(), written down for the wire (messages.Definition).
void define(msgpack::Writer& out, const Operator& op, size_t index, const c10::IValue& v) {
  const Kind kind = op.kinds[index];
  auto tag = [&](const char* t) { out.array(1), out.string(t); };
  if (v.isTensor()) {
    const auto& t = v.toTensor();
    if (!t.defined()) return out.nil();
    if (t.device().is_cpu() && t.dim() == 0) {
      out.array(3), out.string("c"), out.integer(static_cast<int64_t>(t.scalar_type())), out.boolean(t.unsafeGetTensorImpl()->is_wrapped_number());
      return;
    }
    return tag("t");
  }
  if (v.isNone() || kind == Kind::Pin) return out.nil();
  if (v.isInt()) return kind == Kind::Scalar && !op.keyed ? tag("i") : out.integer(v.toInt());
  if (v.isDouble()) return op.keyed ? out.real(v.toDouble()) : tag("f");
  if (v.isBool()) return out.boolean(v.toBool());
  if (v.isComplexDouble()) return tag("z");
  if (v.isString()) return out.string(v.toStringRef());
  if (v.isDevice()) return tag("d");
  if (v.isGenerator()) return tag("g");
  auto list = v.toList();
  out.array(list.size() + 1), out.string("l");
  for (size_t i = 0; i < list.size(); i++) define(out, op, index, list.get(i));
}

void defineMeta(msgpack::Writer& out, const Meta& m, int64_t offset) {
  out.array(4), out.integer(static_cast<int64_t>(m.dtype));
  for (const auto* list : {&m.sizes, &m.strides}) {
    out.array(list->size());
    for (auto x : *list) out.integer(x);
  }
  out.integer(offset);
}

void inputMetas(std::vector<const Meta*>& metas, const Operator& op, const c10::IValue& v) {
  if (v.isTensor()) {
    if (v.toTensor().defined() && v.toTensor().device().type() == kMux) metas.push_back(handleOf(v.toTensor(), op)->meta);
    else if (v.toTensor().defined() && v.toTensor().dim() > 0) {  // a CPU index tensor that was uploaded
      auto& s = Stream::the();
      auto contiguous = v.toTensor().contiguous();
      std::lock_guard lock(s.mutex);
      metas.push_back(s.meta(contiguous.sizes(), contiguous.strides(), contiguous.scalar_type()));
    }
  } else if (v.isList()) {
    auto list = v.toList();
    for (size_t i = 0; i < list.size(); i++) inputMetas(metas, op, list.get(i));
  }
}

// A call on another device with tensors of the same shapes: what `zeros_like(x, device="cpu")` or `x.to("meta")` mean.
c10::IValue onDevice(const c10::IValue& v, c10::Device device) {
  if (v.isTensor()) {
    const auto& t = v.toTensor();
    return t.defined() && t.device().type() == kMux ? at::empty_strided(t.sizes(), t.strides(), t.options().device(device)) : t;
  }
  if (v.isDevice()) return device;
  if (v.isGenerator()) return {};
  if (v.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(onDevice(t, device).toTensor());
    return out;
  }
  if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList()) {
    auto list = v.toList();
    c10::impl::GenericList out(list.elementType());
    for (size_t i = 0; i < list.size(); i++) out.push_back(onDevice(list.get(i), device));
    return out;
  }
  return v;
}

void callOn(const c10::OperatorHandle& handle, const c10::IValue* arguments, size_t n, c10::Device device, Stack& out) {
  for (size_t i = 0; i < n; i++) out.push_back(onDevice(arguments[i], device));
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKeySet(c10::DispatchKey::Functionalize));
  handle.callBoxed(&out);
}

// The metas PyTorch itself predicts, where it has a meta kernel: how long an output list is, and how much memory the first call asks for.
struct Prediction {
  bool known = false;
  std::exception_ptr error;  // why not
  std::vector<std::optional<at::Tensor>> outputs;
  std::vector<int32_t> lists;
};
Prediction predict(const c10::OperatorHandle& handle, const c10::IValue* arguments, size_t n) {
  Prediction p;
  Stack stack;
  try {
    callOn(handle, arguments, n, c10::kMeta, stack);
  } catch (const std::exception&) {
    p.error = std::current_exception();
    return p;  // no meta kernel, or a wrong call: the worker will say which
  }
  auto add = [&p](const at::Tensor& t) { p.outputs.push_back(t.defined() ? std::optional(t) : std::nullopt); };
  for (const auto& r : stack) {
    if (r.isTensorList()) {
      auto list = r.toTensorVector();
      p.lists.push_back(static_cast<int32_t>(list.size()));
      for (const auto& t : list) add(t);
    } else if (r.isTensor()) {
      p.lists.push_back(-1);
      add(r.toTensor());
    } else {
      return Prediction();
    }
  }
  p.known = true;
  return p;
}

int64_t flagsNow() {
  auto& context = at::globalContext();
  int64_t flags = static_cast<int64_t>(c10::get_default_dtype_as_scalartype());
  if (context.deterministicAlgorithms()) flags |= words::DETERMINISTIC;
  if (context.deterministicAlgorithmsWarnOnly()) flags |= words::DETERMINISTIC_WARN_ONLY;
  if (context.deterministicFillUninitializedMemory()) flags |= words::DETERMINISTIC_FILL;
  return flags | Stream::the().slowFlags;
}

std::string shapesOf(const std::vector<const Meta*>& metas) {
  std::string text;
  for (const auto* m : metas) {
    if (!text.empty()) text += " x ";
    text += c10::toString(m->dtype);
    text += c10::str(c10::IntArrayRef(m->sizes));
  }
  return text;
}

// Where the outputs of a view's copying form would lie in the storage of the view itself, input at its beginning: the worker's own answer
// won't do, as its value may lie anywhere. Throws torch's own error where Tensor.view isn't possible: view_copy would copy.
std::vector<int64_t> viewOffsets(const Operator& op, const c10::IValue* arguments, size_t n) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op.name.substr(0, op.name.size() - 5), op.overload});
  if (!handle || handle->schema().arguments().size() != n) return {};
  Stack stack;
  try {
    callOn(*handle, arguments, n, c10::kMeta, stack);
  } catch (const std::exception&) {
    if (op.name == "aten::view_copy" && op.overload.empty()) throw;
    return {};  // the worker will say what is wrong
  }
  std::vector<int64_t> offsets;
  for (const auto& r : stack) {
    if (r.isTensor()) offsets.push_back(r.toTensor().storage_offset());
    else
      for (const at::Tensor& t : r.toTensorVector()) offsets.push_back(t.storage_offset());
  }
  return offsets;
}

struct Recorder {
  const c10::OperatorHandle& handle;
  const Operator& op;
  Call& call;
  const c10::IValue* arguments;
  size_t n;
  // An in-place operator's self keeps its strides, whatever layout the out-of-place form gives: a worker brings a value to the layout that
  // the client sees where that matters.
  const c10::IntArrayRef* strides = inplace.name && op.name == *inplace.name ? inplace.strides : nullptr;
  std::pair<uint64_t, uint64_t> seed{};

  // Before anything is appended: a wrong generator is refused here.
  void draw() {
    if (op.random) seed = drawSeed(call.generator);
  }

  // Appends the instruction; the mutex is held.
  int64_t append(Stream& s, int32_t id, int64_t outputs, int64_t site, int64_t signal) {
    auto& w = s.batch.words;
    if (w.empty() && s.waiting) s.begun.notify_one();
    s.reap();
    const int64_t flags = flagsNow() | (s.tape ? words::TRACE : 0);
    if (C10_UNLIKELY(flags != s.lastFlags)) w.insert(w.end(), {words::order(words::FLAGS, 1), flags}), s.lastFlags = flags;
    if (C10_UNLIKELY(signal != s.lastSignal)) w.insert(w.end(), {words::order(words::SIGNAL, 1), signal}), s.lastSignal = signal;
    w.push_back(words::instruction(id, site));
    w.insert(w.end(), call.inputs.begin(), call.inputs.end());
    w.insert(w.end(), call.literals.begin(), call.literals.end());
    if (op.random) w.push_back(static_cast<int64_t>(seed.first)), w.push_back(static_cast<int64_t>(seed.second));
    const int64_t first = s.nextId;
    if (s.batch.outputs == 0) s.batch.base = first;
    s.nextId += outputs, s.batch.outputs += outputs, s.batch.instructions++, s.issued++;
    if (C10_UNLIKELY(s.tape)) {
      std::vector<const Meta*> metas;
      for (size_t i = 0; i < n; i++) inputMetasLocked(metas, arguments[i]);
      s.tapeEntries.push_back({op.full, id, first, outputs, static_cast<int32_t>(site), signal, shapesOf(metas)});
    }
    return first;
  }

  void inputMetasLocked(std::vector<const Meta*>& metas, const c10::IValue& v) {
    if (v.isTensor()) {
      if (v.toTensor().defined() && v.toTensor().device().type() == kMux) metas.push_back(handleOf(v.toTensor(), op)->meta);
    } else if (v.isList()) {
      auto list = v.toList();
      for (size_t i = 0; i < list.size(); i++) inputMetasLocked(metas, list.get(i));
    }
  }

  const Meta* restrided(const Meta& m) {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    return s.meta(m.sizes, *strides, m.dtype);
  }

  void give(Stack* stack, const Template& t, int64_t id, uint32_t life) {
    const bool wrap = !functionalizing();
    const bool normal = C10_UNLIKELY(c10::InferenceMode::is_enabled()) && (normalValues || (op.view && arguments[0].isTensor() && !arguments[0].toTensor().is_inference()));
    const int64_t begin = op.view ? inputOffset() : 0;  // bytes
    auto make = [&](const Output& o) {
      if (!o.meta) return id++, at::Tensor();
      const Meta* meta = o.meta;
      if (C10_UNLIKELY(strides && c10::IntArrayRef(meta->strides) != *strides && meta->sizes.size() == strides->size())) meta = restrided(*meta);
      const int64_t offset = C10_LIKELY(!begin) ? o.offset : o.offset + begin / static_cast<int64_t>(c10::elementSize(o.meta->dtype));
      at::Tensor inner = makeHandle(id++, meta, offset, life, normal);
      return wrap ? wrapped(inner) : inner;
    };
    stack->erase(stack->end() - static_cast<long>(n), stack->end());
    size_t next = 0;
    for (int32_t length : t.lists) {
      if (length < 0) {
        stack->push_back(make(t.outputs[next++]));
        continue;
      }
      c10::List<at::Tensor> list;
      list.reserve(length);
      for (int32_t i = 0; i < length; i++) list.push_back(make(t.outputs[next++]));
      stack->push_back(std::move(list));
    }
  }

  // How many bytes after the beginning of its storage a view's input lies. What is made of operators that aren't views begins at 0;
  // as_strided counts from the beginning of the storage itself.
  int64_t inputOffset() const {
    if (!arguments[0].isTensor() || (op.absolute && !arguments[3].isNone())) return 0;
    const auto& t = arguments[0].toTensor();
    return t.storage_offset() * static_cast<int64_t>(t.element_size());
  }

  // The instruction leaves at once and the worker's answer is waited for.
  const Template& ask(Stack* stack, const Template* known, int64_t site, int64_t signal) {
    auto& s = Stream::the();
    Prediction p;
    std::vector<const Meta*> metas;
    std::string definition;
    std::vector<int32_t> lists;
    std::vector<int64_t> offsets;
    size_t outputs;
    if (!known) {
      if (op.view) offsets = viewOffsets(op, arguments, n);
      if (call.inputs.empty() || listsUntold()) p = predict(handle, arguments, n);
      for (size_t i = 0; i < n; i++) inputMetas(metas, op, arguments[i]);
      if (p.known) lists = p.lists, outputs = p.outputs.size();
      else {
        outputs = 0;
        for (const auto& r : handle.schema().returns()) {
          lists.push_back(r.type()->kind() == c10::TypeKind::ListType ? listLength(r.name(), p) : -1);
          outputs += lists.back() < 0 ? 1 : lists.back();
        }
      }
    } else {
      lists = known->lists, outputs = known->outputs.size();
    }
    int64_t first, request;
    uint32_t life;
    int32_t id;
    {
      std::lock_guard lock(s.mutex);
      life = s.life;
      id = known ? known->id : static_cast<int32_t>(s.nextTemplate++);
      if (!known) s.batch.definitions.push_back(definitionOf(s, id, metas, p));
      first = append(s, id, static_cast<int64_t>(outputs), site, signal);
      request = s.nextRequest++;
      s.cut(request);
    }
    std::vector<std::unique_ptr<Output>> verdict;
    try {
      verdict = awaitVerdict(request, site);
      TORCH_CHECK(verdict.size() == outputs, "internal error: the worker answered ", verdict.size(), " outputs of ", op.full, ", expected ", outputs);
    } catch (...) {
      std::lock_guard lock(s.mutex);
      if (s.life == life)
        for (size_t i = 0; i < outputs; i++) s.dead.push_back(first + static_cast<int64_t>(i));
      throw;
    }
    auto t = std::make_unique<Template>();
    t->id = id, t->dynamic = dynamic(), t->lists = std::move(lists);
    for (auto& o : verdict) t->outputs.push_back({o ? o->meta : nullptr, 0});
    if (known && op.view) for (size_t i = 0; i < outputs; i++) t->outputs[i].offset = known->outputs[i].offset;
    if (offsets.size() == outputs) for (size_t i = 0; i < outputs; i++) t->outputs[i].offset = offsets[i];
    give(stack, *t, first, life);
    std::lock_guard lock(s.mutex);
    // Kept only if it is the first of its key: another thread may have asked the same meanwhile, and a third reads that answer now.
    if (s.life == life && !known)
      if (auto& slot = s.templates[call.key]; !slot) {
        slot = std::move(t);
        return *slot;
      }
    last = std::move(t);
    return *last;
  }
  std::unique_ptr<Template> last = nullptr;

  // Indexing by numbers gives a shape that the shapes tell; only masks make it depend on data.
  bool dynamic() const {
    if (!op.dynamic || !op.cpuIndices) return op.dynamic;
    auto list = arguments[1].toList();
    for (size_t i = 0; i < list.size(); i++) {
      const c10::IValue v = list.get(i);
      if (!v.isTensor() || !v.toTensor().defined()) continue;
      const auto dtype = v.toTensor().scalar_type();
      if (dtype == c10::kBool || dtype == c10::kByte) return true;
    }
    return false;
  }

  // Whether only a meta kernel knows how many outputs there are. It is asked sparingly: many are Python, and the first drags in seconds of
  // imports.
  bool listsUntold() const {
    if (op.name.rfind("aten::_foreach_", 0) == 0 || op.name.rfind("aten::_fused_", 0) == 0) return false;
    for (const auto& r : handle.schema().returns())
      if (r.type()->kind() == c10::TypeKind::ListType) return true;
    return false;
  }

  // How long an output list is that no meta kernel tells: a functional _fused_* or _foreach_* operator gives one tensor for each of the
  // list it is named after ("exp_avgs_out" for "exp_avgs"), or of its first list.
  int32_t listLength(const std::string& name, const Prediction& p) {
    for (size_t i = 0; i < n; i++)
      if (arguments[i].isTensorList() && (name.empty() || name == op.arguments[i] + "_out")) return static_cast<int32_t>(arguments[i].toTensorList().size());
    try {
      if (p.error) std::rethrow_exception(p.error);
    } catch (const c10::NotImplementedError&) {  // no meta kernel
    }
    notSupported(op.full, "the number of its outputs isn't known before it has run", "call it on CPU tensors");
  }

  std::string definitionOf(Stream& s, int32_t id, const std::vector<const Meta*>& metas, const Prediction& p) {
    msgpack::Writer out;
    out.array(7), out.integer(id), out.string(op.name), out.string(op.overload);
    out.array(n);
    for (size_t i = 0; i < n; i++) define(out, op, i, arguments[i]);
    out.array(metas.size());
    for (const auto* m : metas) defineMeta(out, *m, 0);
    if (!p.known) out.nil();
    else {
      out.array(p.outputs.size());
      for (const auto& t : p.outputs) {
        if (!t) { out.nil(); continue; }
        defineMeta(out, *s.meta(t->sizes(), t->strides(), t->scalar_type()), t->storage_offset());
      }
    }
    out.integer((op.random ? words::RANDOM : 0) | (dynamic() ? words::DYNAMIC : 0));
    return out.take();
  }
};

void checkUsable(const Operator& op) {
  if (C10_UNLIKELY(forked))
    TORCH_CHECK(false, "mux can't be used in a forked child: the session belongs to the parent. Start the child with "
                       "multiprocessing.get_context('spawn'), or keep mux tensors out of it (", op.full, ")");
  if (C10_UNLIKELY(op.mutates)) notSupported(op.full, "it writes into its argument in a way that can't be made pure", "use the out-of-place form");
  if (C10_UNLIKELY(!op.tensorsOnly)) notSupported(op.full, "it returns something that isn't a tensor", "call it on CPU tensors (Tensor.cpu())");
}

// The first call of `name` made for an in-place operator must give self's shape and a dtype that self can take (functional.cpp says which).
void checkInplace(const Operator& op, const Template& t) {
  const auto expected = inplace;
  if (C10_LIKELY(!expected.name) || op.name != *expected.name || t.outputs.empty() || !t.outputs[0].meta) return;
  inplace = {};
  const c10::IntArrayRef found = t.outputs[0].meta->sizes;
  TORCH_CHECK(!expected.sizes || found == *expected.sizes, "output with shape ", *expected.sizes, " doesn't match the broadcast shape ", found);
  const auto dtype = t.outputs[0].meta->dtype;
  TORCH_CHECK(c10::canCast(dtype, expected.dtype), "result type ", dtype, " can't be cast to the desired output type ", expected.dtype);
}

// The calling thread's Call, or one of its own where a call is made inside another (a callback into Python ran an operator).
struct Lease {
  static thread_local Call shared;
  static thread_local bool taken;
  const bool mine = !taken;
  Call own;
  Call& call = mine ? shared : own;
  Lease() {
    taken = true;
    call.clear();
  }
  ~Lease() {
    call.kept.clear();  // index tensors that were uploaded for this call
    if (mine) taken = false;
  }
};
thread_local Call Lease::shared;
thread_local bool Lease::taken = false;

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(Operator o) : op(std::move(o)) {}
  const Operator op;

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const size_t n = op.kinds.size();
    if (C10_UNLIKELY(ending.load(std::memory_order_relaxed))) parkAtEnd();
    checkUsable(op);
    if (C10_UNLIKELY(op.identity) && functionalizing() && isHandle(stack->back())) return;
    Lease lease;
    Call& call = lease.call;
    const auto* self = this;
    call.raw(self);
    call.key.push_back(static_cast<char>(c10::get_default_dtype_as_scalartype()));
    auto* arguments = stack->data() + stack->size() - n;
    for (size_t i = 0; i < n; i++) put(call, op, i, arguments[i]);
    if (C10_UNLIKELY(call.foreign.has_value())) return elsewhere(handle, stack, n, *call.foreign);
    const int64_t site = currentSite(), signal = currentSignal();
    auto& s = Stream::the();
    Recorder recorder{handle, op, call, arguments, n};
    recorder.draw();
    const Template* t = nullptr;
    int64_t first = 0;
    bool full = false;
    uint32_t life;
    {
      std::lock_guard lock(s.mutex);
      life = s.life;
      auto it = s.templates.find(call.key);
      if (C10_LIKELY(it != s.templates.end())) {
        t = it->second.get();
        if (C10_LIKELY(!t->dynamic)) {
          checkInplace(op, *t);
          // before, not after: what the last instruction let die goes with it, and a worker may reuse it
          full = s.batch.words.size() >= s.limit;
          if (C10_UNLIKELY(full)) s.limit = std::min(2 * s.limit, Stream::kMostWords), s.cut(0);
          first = recorder.append(s, t->id, static_cast<int64_t>(t->outputs.size()), site, signal);
        }
      }
    }
    if (C10_UNLIKELY(!t || t->dynamic)) {
      checkInplace(op, recorder.ask(stack, t, site, signal));
      return;
    }
    recorder.give(stack, *t, first, life);
    if (C10_UNLIKELY(full)) sendOutgoing();
  }

  void elsewhere(const c10::OperatorHandle& handle, Stack* stack, size_t n, c10::Device device) {
    Stack out;
    auto keep = std::vector<c10::IValue>(stack->end() - static_cast<long>(n), stack->end());
    callOn(handle, keep.data(), n, device, out);
    stack->erase(stack->end() - static_cast<long>(n), stack->end());
    for (auto& v : out) stack->push_back(std::move(v));
  }
};

// ---- operators that aren't instructions --------------------------------------------------------------------------------------------

at::Scalar localScalar(const at::Tensor& self) { return fetchTensor(self).item(); }

// Whether a tensor that is new here, or is copied anyway, is what `_to_copy` would make of it.
bool alreadySo(const at::Tensor& t, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, at::Device device,
               std::optional<at::MemoryFormat> format) {
  return dtype.value_or(t.scalar_type()) == t.scalar_type() && layout.value_or(t.layout()) == t.layout() && device == t.device() &&
      (format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve || t.suggest_memory_format() == *format);
}

at::Tensor toCopy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout, std::optional<at::Device> device,
                  std::optional<bool> pin, bool nonBlocking, std::optional<at::MemoryFormat> format) {
  if (device && device->type() != kMux && self.device().type() == kMux && !device->is_meta()) {
    auto fetched = fetchTensor(self);
    return alreadySo(fetched, dtype, layout, *device, format) ? fetched : at::_to_copy(fetched, dtype, layout, device, false, false, format);
  }
  if (self.device().type() != kMux) {
    auto data = self.detach();
    if (!alreadySo(data, dtype, std::nullopt, data.device(), format)) data = at::_to_copy(data, dtype, std::nullopt, std::nullopt, std::nullopt, false, format);
    auto handle = uploadTensor(data.to(c10::kCPU));
    return functionalizing() ? handle : wrapped(handle);
  }
  static auto* captured = [] {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
    return new std::pair(handle, std::make_unique<Kernel>(describe(handle)));
  }();
  Stack stack{self, c10::IValue(dtype), c10::IValue(layout), c10::IValue(device), c10::IValue(pin), nonBlocking, c10::IValue(format)};
  (*captured->second)(captured->first, {}, &stack);
  return stack.back().toTensor();
}

// copy(self, src): src comes from the CPU -> an upload in self's layout
at::Tensor copy(const at::Tensor& self, const at::Tensor& src, bool nonBlocking) {
  if (src.device().type() != kMux && self.device().type() == kMux) {
    auto made = src.detach().to(c10::kCPU).to(self.scalar_type()).expand(self.sizes());
    return uploadTensor(made);
  }
  static auto* captured = [] {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy", "");
    return new std::pair(handle, std::make_unique<Kernel>(describe(handle)));
  }();
  Stack stack{self, src, nonBlocking};
  (*captured->second)(captured->first, {}, &stack);
  return stack.back().toTensor();
}

// Who arrives here copies between devices without functionalization in between.
at::Tensor copyFrom(const at::Tensor& self, const at::Tensor& dst, bool) {
  if (self.device().type() == kMux && dst.device().is_cpu()) {
    dst.copy_(fetchTensor(self));
    return dst;
  }
  notSupported("a copy from " + self.device().str() + " to " + dst.device().str(), "the target can't be written in place", "use Tensor.to");
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and ", other.device(), "!");
  if (self.sizes() != other.sizes()) return false;
  return at::eq(self, other).all().item<bool>();
}

bool sameSize(const at::Tensor& self, const at::Tensor& other) { return self.sizes() == other.sizes(); }

// Of handles, which have no storage here: the elements that a storage for this size and stride would have.
bool sameStorageSize(const at::Tensor& self, const at::Tensor& other) {
  auto elements = [](const at::Tensor& t) { return at::detail::computeStorageNbytes(t.sizes(), t.strides(), 1, t.storage_offset()); };
  return elements(self) == elements(other);
}

void recordStream(at::Tensor&, at::Stream) {}

}  // namespace

bool functionalizing() { return c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::Functionalize); }

at::Tensor wrapped(const at::Tensor& inner) { return at::functionalization::impl::to_functional_tensor(inner); }

at::Tensor fetchTensor(const at::Tensor& tensor) {
  static const Operator none{"aten::_to_copy", "aten::_to_copy.default", "", {}, {}};
  TORCH_CHECK(!forked, "mux can't be used in a forked child: the session belongs to the parent");
  auto* mux = handleOf(tensor, none);
  TORCH_CHECK(mux->life == Stream::the().life, "this mux tensor belongs to a session that has ended; make it again");
  auto plain = fetchValue(mux->id, mux->meta);
  if (c10::IntArrayRef(mux->meta->strides) == plain.strides()) return plain;
  // preserve_format, as Tensor.cpu() does: dense strides are kept, others become contiguous
  auto shape = at::empty_strided(mux->meta->sizes, mux->meta->strides, plain.options().device(c10::kMeta));
  auto out = at::empty_like(shape, plain.options());
  at::AutoDispatchBelowADInplaceOrView below;
  return out.copy_(plain);
}

at::Tensor uploadTensor(const at::Tensor& cpu) {
  TORCH_CHECK(!forked, "mux can't be used in a forked child: the session belongs to the parent");
  auto& s = Stream::the();
  at::Tensor data, layout;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    layout = at::empty_like(cpu, cpu.options().device(c10::kMeta));
    data = cpu.resolve_conj().resolve_neg().contiguous();
    if (data.is_same(cpu) || data.storage().is_alias_of(cpu.storage())) data = data.alias();
  }
  int64_t id;
  const Meta* meta;
  uint32_t life;
  {
    std::lock_guard lock(s.mutex);
    s.cut(0);
    meta = s.meta(layout.sizes(), layout.strides(), layout.scalar_type());
    id = s.nextId++;
    life = s.life;
    Outgoing out;
    out.data = data, out.id = id, out.meta = meta, out.seq = s.nextSeq++;
    s.outgoing.push_back(std::move(out));
    s.cuts++, s.uploads++;
  }
  auto handle = makeHandle(id, meta, 0, life, normalValues && c10::InferenceMode::is_enabled());
  sendOutgoing();
  return handle;
}

namespace {
std::vector<c10::RegistrationHandleRAII>* held;
}

int64_t registerCapture() {
  held = new std::vector<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* own = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own->impl("_local_scalar_dense", localScalar);
  own->impl("_to_copy", toCopy);
  own->impl("copy", copy);
  own->impl("_copy_from", copyFrom);
  own->impl("equal", equal);
  own->impl("is_same_size", sameSize);
  own->impl("_has_same_storage_numel", sameStorageSize);
  own->impl("record_stream", recordStream);
  int64_t count = 8;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(describe(*handle)));
    held->push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1, std::move(kernel), std::nullopt, nullptr, "mux"));
    count++;
  }
  return count;
}

}  // namespace gt
