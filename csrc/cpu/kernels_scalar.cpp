// Every kernel for the baseline instruction set of the platform.
#include "bits_kernels.h"
#include "compose_kernels.h"
#include "matrix_kernels.h"
#include "select_kernels.h"
#include "step_kernels.h"
#include "vectors_scalar.h"

namespace lps {

const Kernels& scalar_kernels() {
  static const Kernels table = [] {
    Kernels kernels{};
    kernels.name = ScalarIsa::name;
    fill_compose<ScalarIsa>(kernels);
    fill_select<ScalarIsa>(kernels);
    fill_step<ScalarIsa>(kernels);
    fill_bits<ScalarIsa>(kernels);
    fill_matrix<ScalarVectors>(kernels);
    return kernels;
  }();
  return table;
}

}  // namespace lps
