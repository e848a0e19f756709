// The element types of values on the GPU. For host code and kernels alike, so it includes nothing.
#ifndef STARLING_KERNELS_CUDA_ELEMENT_H_
#define STARLING_KERNELS_CUDA_ELEMENT_H_

namespace starling::cuda {

// Numbered like starling::DataType.
enum class Element : int { kFloat = 1, kBfloat16 = 2, kHalf = 3 };

inline constexpr int ElementBytes(Element element) { return element == Element::kFloat ? 4 : 2; }

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_ELEMENT_H_
