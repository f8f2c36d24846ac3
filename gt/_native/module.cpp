// The Python face of the client's native part: what gt/session.py calls, and the calls it is asked.
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/THP.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <sys/mman.h>

#include <thread>

#include "gt_runtime/protocol/words.hpp"
#include "signal.hpp"
#include "site.hpp"
#include "storage.hpp"
#include "stream.hpp"

namespace py = pybind11;

namespace gt {
namespace {

// Leaked on purpose: capture may be asked after the interpreter's end began.
struct Callbacks {
  PyObject *flush = nullptr, *verdict = nullptr, *fetch = nullptr, *synchronize = nullptr, *notSupported = nullptr;
};
Callbacks& callbacks() {
  static auto* c = new Callbacks();
  return *c;
}

// A daemon thread that still runs when the interpreter ends is unwound where it asks for the GIL, and then hasn't got it.
struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() {
    if (PyGILState_Check()) PyGILState_Release(state);
  }
};

[[noreturn]] void raisePython() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PyObject* call(PyObject* f, PyObject* arguments) {
  if (!f) TORCH_CHECK(false, "gt isn't initialised: import gt before using the device mux");
  PyObject* result = PyObject_CallObject(f, arguments);
  Py_XDECREF(arguments);
  if (C10_UNLIKELY(ending)) parkAtEnd();
  if (!result) raisePython();
  return result;
}

void alive() { TORCH_CHECK(Py_IsInitialized(), "mux can't be used while the interpreter ends"); }

py::list longs(const std::vector<int64_t>& v) {
  py::list out;
  for (auto x : v) out.append(x);
  return out;
}

}  // namespace

void sendOutgoing() {
  alive();
  Gil gil;
  Py_DECREF(call(callbacks().flush, nullptr));
}

std::vector<std::unique_ptr<Output>> awaitVerdict(int64_t request, int64_t site) {
  alive();
  Gil gil;
  PyObject* metas = call(callbacks().verdict, Py_BuildValue("(LL)", static_cast<long long>(request), static_cast<long long>(site)));
  std::vector<std::unique_ptr<Output>> out;
  {
    auto list = py::reinterpret_steal<py::list>(metas);
    auto& s = Stream::the();
    for (auto item : list) {
      if (item.is_none()) {
        out.push_back(nullptr);
        continue;
      }
      auto m = item.cast<py::list>();
      auto sizes = m[1].cast<std::vector<int64_t>>(), strides = m[2].cast<std::vector<int64_t>>();
      auto dtype = static_cast<c10::ScalarType>(m[0].cast<int>());
      std::lock_guard lock(s.mutex);  // nobody asks for the GIL while holding it
      out.push_back(std::make_unique<Output>(Output{s.meta(sizes, strides, dtype), m[3].cast<int64_t>()}));
    }
  }
  return out;
}

at::Tensor fetchValue(int64_t id, const Meta* meta) {
  alive();
  Gil gil;
  auto arguments = py::make_tuple(id, longs(meta->sizes), static_cast<int>(meta->dtype));
  PyObject* result = call(callbacks().fetch, arguments.release().ptr());
  auto tensor = THPVariable_Check(result) ? THPVariable_Unpack(result) : at::Tensor();
  Py_DECREF(result);
  TORCH_CHECK(tensor.defined(), "internal error: a fetch gave no tensor");
  return tensor;
}

void synchronizeSession() {
  alive();
  Gil gil;
  Py_DECREF(call(callbacks().synchronize, nullptr));
}

void lockWithoutGil(std::recursive_mutex& mutex) {
  if (mutex.try_lock()) return;
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  mutex.lock();
  if (state) PyEval_RestoreThread(state);
}

void notSupported(const std::string& what, const std::string& why, const std::string& instead) {
  alive();
  Gil gil;
  PyObject* type = callbacks().notSupported;
  if (!type) TORCH_CHECK(false, what, " is not supported on mux: ", why, "; instead: ", instead);
  PyObject* error = PyObject_CallFunction(type, "sss", what.c_str(), why.c_str(), instead.c_str());
  if (error) {
    PyErr_SetObject(type, error);
    Py_DECREF(error);
  }
  raisePython();
}

namespace {
std::thread::id ender;
}

void parkAtEnd() {
  if (std::this_thread::get_id() == ender || !inPython()) return;
  if (PyGILState_Check()) PyEval_SaveThread();
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

namespace {

// The next thing to send, or None. It stays until `sent` says that it has left, so that an interrupt in between loses nothing.
py::object first() {
  auto& s = Stream::the();
  const Outgoing* o = nullptr;
  {
    std::lock_guard lock(s.mutex);
    if (s.outgoing.empty()) return py::none();
    o = &s.outgoing.front();  // a deque's elements don't move; only `sent` and `end` remove, and both have the GIL
  }
  if (o->meta)
    return py::make_tuple(o->seq, o->id, py::make_tuple(static_cast<int>(o->meta->dtype), longs(o->meta->sizes), longs(o->meta->strides), 0), o->data);
  py::list definitions, signals;
  for (auto& d : o->definitions) definitions.append(py::bytes(d));
  for (auto& g : o->signals) signals.append(py::make_tuple(g.id, g.name));
  return py::make_tuple(o->seq, o->base, o->outputs, o->instructions, o->verdict, definitions, signals,
                        py::bytes(reinterpret_cast<const char*>(o->words.data()), o->words.size() * 8));
}

void sent(int64_t seq) {
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  if (!s.outgoing.empty() && s.outgoing.front().seq == seq) s.outgoing.pop_front();
}

py::dict dtypes() {
  py::dict out;
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); i++) {
    auto type = static_cast<c10::ScalarType>(i);
    if (type == c10::ScalarType::Undefined) continue;
    try {
      out[py::int_(i)] = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
    } catch (const std::exception&) {
    }
  }
  return out;
}

void cut() {
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  s.limit = Stream::kFirstWords;
  s.cut(0);
}

int64_t waiting() {
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  return static_cast<int64_t>(s.outgoing.size());
}

// Returns true once the batch under way should leave though it isn't full: nothing was added to it for `tick` seconds, or it is kOld ticks
// old; false after about `idle` seconds. While there is traffic it looks every tick, so that recording never has to wake a thread.
bool waitWindow(double tick, double idle) {
  constexpr int kOld = 5, kQuiet = 50;
  auto& s = Stream::the();
  const auto pause = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(tick));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(idle);
  bool stale = false;
  Py_BEGIN_ALLOW_THREADS;
  std::unique_lock lock(s.mutex);
  int quiet = s.waiting ? kQuiet : 0, age = 0;
  s.waiting = false;
  while (!stale && std::chrono::steady_clock::now() < until) {
    if (quiet >= kQuiet) {
      s.waiting = true;
      if (!s.begun.wait_until(lock, until, [&] { return s.pending(); })) break;  // still waiting: the next call goes on so
      s.waiting = false, quiet = 0;
    }
    const bool pending = s.pending();
    const auto cuts = s.cuts, issued = s.issued;
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
    if (cuts != s.cuts || !pending) age = 0;
    else age++;
    stale = age > 0 && (issued == s.issued || age >= kOld);
    quiet = s.pending() || cuts != s.cuts ? 0 : quiet + 1;
  }
  lock.unlock();
  Py_END_ALLOW_THREADS;
  return stale;
}

int64_t signalNumber(const std::string& name) {
  if (name.empty()) return 0;
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  auto [it, fresh] = s.signals.try_emplace(name, s.nextSignal);
  if (fresh) s.batch.signals.push_back({s.nextSignal++, name});
  return it->second;
}

py::list tapeTake() {
  std::vector<TapeEntry> entries;
  auto& s = Stream::the();
  {
    std::lock_guard lock(s.mutex);
    entries.swap(s.tapeEntries);
  }
  py::list out;
  for (const auto& e : entries) out.append(py::make_tuple(e.name, e.tmpl, e.output, e.outputs, e.site, e.signal, e.shapes));
  return out;
}

py::dict stats() {
  auto& s = Stream::the();
  std::lock_guard lock(s.mutex);
  py::dict d;
  d["instructions"] = s.issued;
  d["templates"] = s.templates.size();
  d["metas"] = s.metas.size();
  d["ids"] = s.nextId;
  d["dead"] = s.dead.size();
  d["pending_words"] = s.batch.words.size();
  d["batches"] = s.cuts;
  return d;
}

// Bytes that were fetched, as a new contiguous CPU tensor.
at::Tensor tensorOf(const py::buffer& data, const std::vector<int64_t>& sizes, int64_t dtype) {
  at::Tensor out;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    out = at::empty(sizes, at::TensorOptions().dtype(static_cast<c10::ScalarType>(dtype)));
  }
  const auto found = data.request();
  const auto nbytes = static_cast<size_t>(found.size * found.itemsize);
  TORCH_CHECK(nbytes == out.nbytes(), "internal error: a fetch of ", out.nbytes(), " bytes brought ", nbytes);
  if (nbytes) std::memcpy(out.data_ptr(), found.ptr, nbytes);
  return out;
}

// Fresh memory costs the system a call for each page; of huge pages there are 512 times fewer.
void useHugePages(uintptr_t begin, size_t nbytes) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = 2 << 20;
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + nbytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: refused, nothing is lost
#endif
}

}  // namespace
}  // namespace gt

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace gt;
  m.doc() = "The client's native part: device, capture, stream. Used by gt.session and gt.device only.";
  m.def("register_device", [] {
    registerDevice();
    registerAutocast();
    registerComposed();
    registerRefused();
    registerFunctional();  // after those that stand above autograd: it takes over what is made of other operators
    registerStorage();
    registerConjugate();
    return registerCapture();
  });
  m.def("connect_callbacks", [](py::object flush, py::object verdict, py::object fetch, py::object synchronize, py::object notSupported) {
    callbacks() = {flush.release().ptr(), verdict.release().ptr(), fetch.release().ptr(), synchronize.release().ptr(), notSupported.release().ptr()};
  });
  m.def("schema_hash", &words::schemaHash);
  m.def("first", &first, "The next thing to send: a batch as an 8-tuple, an upload as a 4-tuple, or None.");
  m.def("sent", &sent);
  m.def("end_of_program", [] {
    ender = std::this_thread::get_id();
    ending = true;
  }, "From now on only this thread uses mux; others that try sleep for ever.");
  m.def("waiting", &waiting, "How many things wait to be sent.");
  m.def("dtypes", &dtypes);
  m.def("tensor_of", &tensorOf, "Fetched bytes as a new contiguous CPU tensor of the given sizes and ScalarType number.");
  m.def("use_huge_pages", &useHugePages, "Asks the system for huge pages in the memory at an address.");
  m.def("cut", &cut, "The batch under way becomes the next thing to send.");
  m.def("wait_window", &waitWindow);
  m.def("new_request", [] {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    return s.nextRequest++;
  });
  m.def("end", [] {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    s.end();
  });
  m.def("acknowledge", &acknowledge);
  m.def("set_internal", &setInternal);
  m.def("site", &siteOf);
  m.def("signal_number", &signalNumber);
  m.def("signals", [] {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    return s.signals;
  });
  m.def("default_generator", [] { return at::globalContext().defaultGenerator(c10::Device(kMux, 0)); });
  m.def("enter_signal", &enterSignal);
  m.def("current_signal", &currentSignal);
  m.def("tape_start", [] {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    s.cut(0);  // the batch says whether it is traced
    s.tape = true, s.tapeEntries.clear();
  });
  m.def("tape_stop", [] {
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    s.cut(0);
    s.tape = false;
  });
  m.def("tape_take", &tapeTake);
  m.def("refresh_flags", [](bool flushDenormal) {
    auto& context = at::globalContext();
    int64_t flags = flushDenormal ? words::FLUSH_DENORMAL : 0;
    // The older getters refuse to answer a program that has used both ways to set these flags; the newer one always does.
    const auto tf32 = [&](at::Float32Op op) { return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32; };
    const auto either = [](auto older, auto newer) {
      try {
        return older();
      } catch (const c10::Error&) {
        return newer();
      }
    };
    if (either([&] { return context.allowTF32CuDNN(); }, [&] { return tf32(at::Float32Op::CONV); })) flags |= words::TF32_CUDNN;
    if (either([&] { return context.allowTF32CuBLAS(); }, [&] { return tf32(at::Float32Op::MATMUL); })) flags |= words::TF32_CUBLAS;
    const auto precision = either([&] { return context.float32MatmulPrecision(); },
                                  [&] { return tf32(at::Float32Op::MATMUL) ? at::Float32MatmulPrecision::HIGH : at::Float32MatmulPrecision::HIGHEST; });
    if (precision == at::Float32MatmulPrecision::HIGH) flags |= words::MATMUL_HIGH;
    if (precision == at::Float32MatmulPrecision::MEDIUM) flags |= words::MATMUL_MEDIUM;
    auto& s = Stream::the();
    std::lock_guard lock(s.mutex);
    s.slowFlags = flags;
  }, "Reads the flags that a setter may have changed; what is recorded from now on carries them.");
  m.def("forked", [] { return forked; });
  bindStorage(m);
  m.def("stats", &stats);
  m.def("value_id", [](const at::Tensor& t) -> int64_t {
    auto* impl = t.unsafeGetTensorImpl();
    if (impl->key_set().has(c10::DispatchKey::Functionalize)) {
      at::functionalization::impl::sync(t);
      impl = at::functionalization::impl::unsafeGetFunctionalWrapper(t)->value().unsafeGetTensorImpl();
    }
    auto* mux = dynamic_cast<Mux*>(impl);
    TORCH_CHECK(mux, "not a mux tensor");
    return mux->id;
  });
}
