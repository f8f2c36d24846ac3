// The worker's executor as a Python class. All methods but stats() belong to one thread, the worker's main loop; those that run
// operators or move bytes do it without the GIL. What is wrong with what a client sent comes back as a packed failure
// (messages.Failure.pack), never as an exception.
#include <torch/csrc/utils/pybind.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <functional>

#include "session.hpp"

namespace gt::worker {
namespace {

void trim() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

// An operator's words may hold any bytes.
py::str text(const std::string& from) {
  PyObject* decoded = PyUnicode_DecodeUTF8(from.data(), static_cast<py::ssize_t>(from.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::object packed(const FailurePtr& f) {
  if (!f) return py::none();
  f->reported = true;
  py::list out;
  for (const auto* part : {&f->kind, &f->type, &f->message, &f->op, &f->shapes, &f->worker}) out.append(text(*part));
  out.append(f->site);
  out.append(text(f->signal));
  return out;
}

FailurePtr unpacked(const py::list& fields) {
  if (fields.size() != 8) throw py::value_error("a packed failure has 8 fields");
  auto f = std::make_shared<Failure>();
  std::string* texts[] = {&f->kind, &f->type, &f->message, &f->op, &f->shapes, &f->worker};
  for (int i = 0; i < 6; ++i) *texts[i] = py::cast<std::string>(fields[i]);
  f->site = py::cast<int64_t>(fields[6]);
  f->signal = py::cast<std::string>(fields[7]);
  return f;
}

py::object pyMeta(const Meta& meta) {
  py::list out;
  out.append(static_cast<int64_t>(meta.dtype));
  out.append(py::cast(meta.sizes));
  out.append(py::cast(meta.strides));
  out.append(meta.offset);
  return out;
}

// A value's bytes on the host, contiguous; a Python buffer without a copy of them.
struct Contents {
  at::Tensor tensor;
  size_t nbytes() const { return tensor.nbytes(); }
  void* data() const {
    static char nothing[1];
    return nbytes() ? tensor.data_ptr() : nothing;
  }
};

struct View {  // a Python buffer, held while the GIL is released
  explicit View(const py::buffer& from, bool writable = false) {
    if (PyObject_GetBuffer(from.ptr(), &buffer, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  ~View() { PyBuffer_Release(&buffer); }
  View(const View&) = delete;
  Py_buffer buffer;
};

class Executor {
 public:
  Executor(std::string worker, const std::string& device, int64_t limit) : shared_(std::move(worker), c10::Device(device), limit) {
    if (shared_.device.is_cpu()) BoundedAllocator::install();
    shared_.others = [this](const std::string& name) { return othersOf(name); };
  }

  void open(const std::string& name, int64_t cap) { sessions_.insert_or_assign(name, std::make_unique<Session>(name, cap, shared_)); }
  void close(const std::string& name) {
    std::unique_ptr<Session> gone;
    if (auto it = sessions_.find(name); it != sessions_.end()) {
      gone = std::move(it->second);
      sessions_.erase(it);
    }
    py::gil_scoped_release release;  // freeing gigabytes takes a while
    gone.reset();
  }
  bool known(const std::string& name) const { return sessions_.count(name) != 0; }

  void define(const std::string& name, const py::list& definitions) {
    Session& session = of(name);
    for (auto item : definitions) {
      try {
        if (!py::isinstance<py::list>(item)) throw Malformed("a definition is a list");
        auto definition = py::cast<py::list>(item);
        const int64_t id = definitionId(definition);
        if (id < 0 || id >= kMaxTemplates) throw Malformed("template id " + std::to_string(id) + " is out of range");
        session.define(id, prepare(definition, shared_.device));
      } catch (const Malformed& e) {
        session.breakSession(std::string("a definition makes no sense: ") + e.what());
      }
    }
  }

  void signals(const std::string& name, const py::list& signals) {
    Session& session = of(name);
    for (auto item : signals) {
      try {
        auto pair = py::isinstance<py::list>(item) ? py::cast<py::list>(item) : py::list();
        if (pair.size() != 2 || !py::isinstance<py::str>(pair[1])) throw Malformed("a signal is [id, name]");
        session.signal(detail::toInt(pair[0], "a signal's id"), py::cast<std::string>(pair[1]));
      } catch (const Malformed& e) {
        session.breakSession(e.what());
      }
    }
  }

  py::tuple run(const std::string& name, const py::buffer& words, int64_t position, int64_t next, bool verdict) {
    Session& session = of(name);
    View view(words);
    const int64_t count = view.buffer.len / static_cast<int64_t>(sizeof(int64_t));
    Cursor cursor{position, next, -1};
    if (position < 0 || view.buffer.len % sizeof(int64_t) != 0) {
      session.breakSession("a batch of " + std::to_string(view.buffer.len) + " bytes is no list of 8-byte words");
      return py::make_tuple(count, next, -1);
    }
    {
      py::gil_scoped_release release;
      const auto* start = static_cast<const char*>(view.buffer.buf);
      if (reinterpret_cast<uintptr_t>(start) % alignof(int64_t) == 0) {
        session.run(reinterpret_cast<const int64_t*>(start), count, cursor, verdict);
      } else {  // a frame that lies crooked in memory
        std::vector<int64_t> copy(count);
        std::memcpy(copy.data(), start, count * sizeof(int64_t));
        session.run(copy.data(), count, cursor, verdict);
      }
    }
    return py::make_tuple(cursor.position, cursor.next, cursor.waits_for);
  }

  py::tuple verdict(const std::string& name) {
    auto verdict = of(name).takeVerdict();
    if (verdict.failure) return py::make_tuple(packed(verdict.failure), py::none());
    py::list metas;
    for (const auto& meta : verdict.outputs) metas.append(meta ? pyMeta(*meta) : py::object(py::none()));
    return py::make_tuple(py::none(), metas);
  }

  py::object put(const std::string& name, int64_t id, const py::object& meta, const py::buffer& data) {
    Session& session = of(name);
    View view(data);
    Meta layout;
    try {
      layout = detail::readMeta(meta);
    } catch (const Malformed& e) {
      return poisoned(session, id, session.breakSession(std::string("an upload makes no sense: ") + e.what()));
    }
    const int64_t expected = numel(layout.sizes) * static_cast<int64_t>(c10::elementSize(layout.dtype));
    if (expected != view.buffer.len)
      return poisoned(session, id, session.breakSession("an upload of " + shapeText(layout.dtype, layout.sizes) + " takes " +
          std::to_string(expected) + " bytes, not " + std::to_string(view.buffer.len)));
    const auto make = [&] { return received(layout, view.buffer.buf); };
    return keep(session, id, layout, "an upload of ", make);
  }

  void expect(const std::string& name, int64_t id) { of(name).values.expect(id); }

  // A copy from a peer has come: `bytes` are the elements in the order of `meta`'s strides. None, or the failure it has become.
  py::object settle(const std::string& name, int64_t id, const py::object& meta, const at::Tensor& bytes) {
    Session& session = of(name);
    Value* value = session.values.find(id);
    if (value == nullptr || value->state != State::PENDING) return py::none();  // freed meanwhile
    Meta layout;
    try {
      layout = detail::readMeta(meta);
    } catch (const Malformed& e) {
      return poisoned(session, id, session.breakSession(std::string("a copy makes no sense: ") + e.what()));
    }
    const auto make = [&] {
      if (numel(layout.sizes) == 0) return at::empty_strided(layout.sizes, layout.strides, options(layout.dtype));
      return bytes.view(layout.dtype).as_strided(layout.sizes, layout.strides, 0);
    };
    return keep(session, id, layout, "a copy of ", make);
  }

  void poison(const std::string& name, const std::vector<int64_t>& ids, const py::list& failure) {
    Session& session = of(name);
    const auto cause = unpacked(failure);
    for (int64_t id : ids)
      if (id >= 0) session.values.poison(id, cause);
  }

  // (failure, None, None): the value is missing. (None, meta, Contents) otherwise.
  py::tuple read(const std::string& name, int64_t id) {
    Session& session = of(name);
    const auto [failure, tensor] = get(session, id);
    if (failure) return py::make_tuple(packed(failure), py::none(), py::none());
    Contents contents;
    auto problem = std::make_shared<Failure>();
    bool good = true;
    {
      py::gil_scoped_release release;
      Below below;
      try {
        contents.tensor = tensor.to(at::kCPU).contiguous();
      } catch (...) {
        describeCurrentException(*problem);
        problem->worker = shared_.worker;
        good = false;
      }
    }
    if (!good) return py::make_tuple(packed(problem), py::none(), py::none());
    return py::make_tuple(py::none(), pyMeta(metaOf(tensor)), contents);
  }

  // (failure, None, None, 0), or (None, meta, bytes, token): the value as uint8 on its device, in the order of the meta's strides where it
  // is dense, else contiguous. It counts as held until release(token).
  py::tuple lend(const std::string& name, int64_t id) {
    Session& session = of(name);
    const auto [failure, tensor] = get(session, id);
    if (failure) {
      const bool told = failure->reported;
      auto fields = packed(failure);
      failure->reported = told;  // a peer isn't the client
      return py::make_tuple(fields, py::none(), py::none(), 0);
    }
    Meta meta = metaOf(tensor);
    meta.offset = 0;
    at::Tensor bytes;
    {
      py::gil_scoped_release release;
      Below below;
      const auto size = extent(meta.sizes, meta.strides, 0);
      const bool dense = size && *size == tensor.numel() && distinct(meta.sizes, meta.strides);
      if (!dense) meta.strides = contiguousStrides(meta.sizes);
      const at::Tensor flat = dense ? tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset()) : tensor.contiguous().reshape({-1});
      bytes = flat.view(at::kByte);
    }
    session.values.retain(bytes);
    lent_.emplace(++token_, std::make_pair(name, bytes));
    return py::make_tuple(py::none(), pyMeta(meta), bytes, token_);
  }

  void release(int64_t token) {
    auto it = lent_.find(token);
    if (it == lent_.end()) return;
    if (auto session = sessions_.find(it->second.first); session != sessions_.end()) session->second->values.release(it->second.second);
    lent_.erase(it);
  }

  std::string state(const std::string& name, int64_t id) {
    const Value* value = of(name).values.find(id);
    if (value == nullptr) return "unknown";
    return value->state == State::READY ? "ready" : value->state == State::PENDING ? "pending" : "poison";
  }

  void free(const std::string& name, const std::vector<int64_t>& ids) {
    Session& session = of(name);
    for (int64_t id : ids)
      if (id >= 0) session.values.erase(id);
  }

  py::object broken(const std::string& name, const std::string& why) { return packed(of(name).breakSession(why)); }
  py::object unreported(const std::string& name) { return packed(of(name).unreported()); }
  py::bytes trace(const std::string& name) {
    const auto words = of(name).takeTrace();
    return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
  }
  int64_t instructions(const std::string& name) { return of(name).instructions(); }

  py::dict stats() const {
    int64_t count = 0;
    py::dict sessions;
    for (const auto& [name, session] : sessions_) {
      count += session->values.count();
      sessions[py::str(name)] = py::make_tuple(session->values.count(), session->values.bytes(), session->instructions());
    }
    py::dict out;
    out["instructions"] = shared_.instructions.get();
    out["values"] = count;
    out["value_bytes"] = shared_.bytes.get();
    out["sessions"] = sessions;
    return out;
  }

 private:
  static constexpr int64_t kMaxTemplates = 1 << 20;  // limits.MAX_TEMPLATES

  Session& of(const std::string& name) {
    auto it = sessions_.find(name);
    if (it == sessions_.end()) throw py::key_error("no session " + name + " is open on this worker");
    return *it->second;
  }

  std::pair<FailurePtr, at::Tensor> get(Session& session, int64_t id) {
    const Value* value = id < 0 ? nullptr : session.values.find(id);
    if (value == nullptr) return {session.unknown(id), {}};
    if (value->state == State::POISON) return {value->failure, {}};
    if (value->state == State::PENDING) throw py::value_error("value " + std::to_string(id) + " is still under way");
    return {nullptr, value->tensor};
  }

  py::object poisoned(Session& session, int64_t id, const FailurePtr& failure) {
    if (id >= 0) session.values.poison(id, failure);
    return packed(failure);
  }

  // Stores what `make` makes if there is memory for it.
  py::object keep(Session& session, int64_t id, const Meta& layout, const char* what, const std::function<at::Tensor()>& make) {
    const std::string described = what + shapeText(layout.dtype, layout.sizes);
    const int64_t bytes = *extent(layout.sizes, layout.strides, 0) * static_cast<int64_t>(c10::elementSize(layout.dtype));
    auto failure = session.fits(bytes) ? FailurePtr() : session.overMemory(bytes, described);
    if (!failure) {
      py::gil_scoped_release release;
      Below below;
      try {
        session.values.store(id, make());
      } catch (...) {
        failure = std::make_shared<Failure>();
        describeCurrentException(*failure);
        failure->worker = shared_.worker;
      }
    }
    if (!failure) return py::none();
    session.remember(failure);
    const auto fields = poisoned(session, id, failure);
    failure->reported = false;  // nobody waits for an upload: it is told where the value is used, or at the next sync
    return fields;
  }

  at::TensorOptions options(c10::ScalarType dtype) const { return at::TensorOptions().dtype(dtype).device(shared_.device); }

  // The bytes as a tensor of this worker's in the client's layout.
  at::Tensor received(const Meta& layout, void* data) {
    if (numel(layout.sizes) == 0) return at::empty_strided(layout.sizes, layout.strides, options(layout.dtype));
    if (sameStrides(layout.sizes, layout.strides, contiguousStrides(layout.sizes))) {
      at::Tensor tensor = at::empty_strided(layout.sizes, layout.strides, options(layout.dtype));
      if (shared_.device.is_cpu())
        std::memcpy(tensor.data_ptr(), data, tensor.nbytes());
      else
        tensor.copy_(at::from_blob(data, layout.sizes, at::TensorOptions().dtype(layout.dtype)));
      return tensor;
    }
    const auto bytes = static_cast<size_t>(numel(layout.sizes)) * c10::elementSize(layout.dtype);
    at::Tensor aligned = at::empty(layout.sizes, at::TensorOptions().dtype(layout.dtype));
    std::memcpy(aligned.data_ptr(), data, bytes);
    return layOut(aligned, layout.strides, 0, shared_.device);
  }

  std::string othersOf(const std::string& name) const {
    std::vector<std::pair<int64_t, std::string>> holders;
    for (const auto& [other, session] : sessions_)
      if (other != name && session->values.bytes() > 0) holders.emplace_back(session->values.bytes(), other);
    std::sort(holders.rbegin(), holders.rend());
    constexpr size_t shown = 5;
    std::string text;
    for (size_t i = 0; i < std::min(holders.size(), shown); ++i)
      text += (i ? ", " : "") + holders[i].second + " " + bytesText(holders[i].first);
    if (holders.size() > shown) text += " and " + std::to_string(holders.size() - shown) + " more";
    return text;
  }

  Shared shared_;
  std::map<std::string, std::unique_ptr<Session>> sessions_;
  std::unordered_map<int64_t, std::pair<std::string, at::Tensor>> lent_;
  int64_t token_ = 0;
};

}  // namespace

PYBIND11_MODULE(_executor, m) {
  m.doc() = "The worker's executor: values, templates and the loop that runs instruction words.";
  m.def("trim", &trim, "Gives free memory of the heap back to the system.", py::call_guard<py::gil_scoped_release>());
  m.def("schema_hash", &words::schemaHash, "Hash of all aten schemas; a cluster's members must have the same.");
  py::class_<Contents>(m, "Contents", py::buffer_protocol())
      .def_property_readonly("nbytes", &Contents::nbytes)
      .def("copy_to",
           [](const Contents& self, const py::buffer& target) {
             View view(target, true);
             if (static_cast<size_t>(view.buffer.len) < self.nbytes()) throw py::value_error("the target is smaller than the value");
             py::gil_scoped_release release;
             std::memcpy(view.buffer.buf, self.data(), self.nbytes());
           })
      .def_buffer([](const Contents& self) {
        return py::buffer_info(self.data(), 1, "B", 1, {static_cast<py::ssize_t>(self.nbytes())}, {py::ssize_t(1)}, true);
      });
  py::class_<Executor>(m, "Executor")
      .def(py::init<std::string, std::string, int64_t>(), py::arg("worker"), py::arg("device"), py::arg("limit"))
      .def("open", &Executor::open)
      .def("close", &Executor::close)
      .def("known", &Executor::known)
      .def("define", &Executor::define)
      .def("signals", &Executor::signals)
      .def("run", &Executor::run)
      .def("verdict", &Executor::verdict)
      .def("put", &Executor::put)
      .def("expect", &Executor::expect)
      .def("settle", &Executor::settle)
      .def("poison", &Executor::poison)
      .def("read", &Executor::read)
      .def("lend", &Executor::lend)
      .def("release", &Executor::release)
      .def("state", &Executor::state)
      .def("free", &Executor::free)
      .def("broken", &Executor::broken)
      .def("unreported", &Executor::unreported)
      .def("trace", &Executor::trace)
      .def("instructions", &Executor::instructions)
      .def("stats", &Executor::stats);
}

}  // namespace gt::worker
