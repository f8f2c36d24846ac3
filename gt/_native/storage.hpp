#pragma once
#include <pybind11/pybind11.h>

namespace gt {

void bindStorage(pybind11::module_& m);

}  // namespace gt
