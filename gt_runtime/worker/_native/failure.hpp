// Why a value is missing: the C++ twin of messages.Failure, how exceptions become one, and the words a person reads in it.
#pragma once
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>

namespace gt::worker {

struct Failure {
  std::string kind, type, message, op, shapes, worker;
  int64_t site = 0;
  std::string signal;
  bool reported = false;  // a verdict, a fetch or a sync has told it
};
using FailurePtr = std::shared_ptr<Failure>;

namespace kinds {
constexpr const char* OPERATOR = "operator";
constexpr const char* MEMORY = "memory";
constexpr const char* PROTOCOL = "protocol";
constexpr const char* REFUSED_OPERATOR = "operator";  // PyTorch too would say that nobody implements it
}  // namespace kinds

inline std::string bytesText(int64_t n) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(n);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

// "float32", as Python says it.
inline std::string dtypeName(c10::ScalarType dtype) {
  static const std::unordered_map<std::string, std::string> names = {
      {"Byte", "uint8"},          {"Char", "int8"},           {"Short", "int16"},  {"Int", "int32"},
      {"Long", "int64"},          {"Half", "float16"},        {"Float", "float32"}, {"Double", "float64"},
      {"ComplexHalf", "complex32"}, {"ComplexFloat", "complex64"}, {"ComplexDouble", "complex128"}};
  std::string name = c10::toString(dtype);
  if (auto it = names.find(name); it != names.end()) return it->second;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

// "float32[4, 3]"
inline std::string shapeText(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  std::string text = dtypeName(dtype) + "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// Fills kind, type and message from the exception that is being handled: the type is the one torch's Python binding would raise, the
// message the operator's own words without the C++ backtrace. Call only inside a catch block.
inline void describeCurrentException(Failure& failure) {
  failure.kind = kinds::OPERATOR;
  failure.type = "RuntimeError";
  auto take = [&](const char* type, const c10::Error& error) {
    failure.type = type;
    failure.message = error.what_without_backtrace();
  };
  try {
    throw;
  } catch (const c10::IndexError& e) {
    take("IndexError", e);
  } catch (const c10::ValueError& e) {
    take("ValueError", e);
  } catch (const c10::TypeError& e) {
    take("TypeError", e);
  } catch (const c10::NotImplementedError& e) {
    take("NotImplementedError", e);
  } catch (const c10::BufferError& e) {
    take("BufferError", e);
  } catch (const c10::LinAlgError& e) {
    take("LinAlgError", e);
  } catch (const c10::OutOfMemoryError& e) {
    take("OutOfMemoryError", e);
    failure.kind = kinds::MEMORY;
  } catch (const c10::Error& e) {
    take("RuntimeError", e);
    // The CPU allocator says it with an ordinary error: "DefaultCPUAllocator: can't allocate memory: you tried to ..."
    if (failure.message.find("DefaultCPUAllocator") != std::string::npos) {
      failure.kind = kinds::MEMORY;
      failure.type = "OutOfMemoryError";
    }
  } catch (const std::bad_alloc& e) {
    failure.kind = kinds::MEMORY;
    failure.type = "OutOfMemoryError";
    failure.message = "the worker's host has no memory left for this";
  } catch (const std::exception& e) {
    failure.message = e.what();
  } catch (...) {
    failure.message = "the operator threw something that is no std::exception";
  }
}

}  // namespace gt::worker
