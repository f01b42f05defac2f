// Launches the upload of tables.
#include <algorithm>
#include <cstring>

#include "runtime.h"
#include "upload.cuh"

namespace lps {

void upload(void* stream, const void* from, void* to, int64_t bytes) {
  Gpu gpu{};
  gpu.stream = stream;
  for (int64_t done = 0; done < bytes;) {
    Parcel parcel{};
    const int64_t some = std::min<int64_t>(bytes - done, sizeof(parcel));
    std::memcpy(&parcel, static_cast<const char*>(from) + done, static_cast<size_t>(some));
    uint32_t* target = reinterpret_cast<uint32_t*>(static_cast<char*>(to) + done);
    LPS_LAUNCH(gpu, upload_kernel, 1, kParcelThreads, 0, parcel, target, static_cast<int>(some / 4));
    done += some;
  }
}

}  // namespace lps
