// The element-wise formulas of update.h. Only for the kernels.
#ifndef STARLING_SERVER_SHARD_APPLY_UPDATE_MATH_H_
#define STARLING_SERVER_SHARD_APPLY_UPDATE_MATH_H_

#include <cmath>

#include "server/shard/apply/update.h"

namespace starling {

// Everything that is constant over the elements of a block's update.
struct UpdateConstants {
  // `shrink` multiplies the gradient: 1, or less if it is clipped.
  UpdateConstants(const UpdateRule& rule, const UpdateScalars& scalars, double shrink);

  float scale;
  float rate;
  float decay;      // added to the gradient, times w
  float keep;       // adamw: 1 - rate * decay; otherwise 1
  float own_decay;  // lamb: added to the step, times w
  float momentum;   // statistic: share of the new value
  float rest;       // statistic: 1 - momentum
  float beta1, beta1_rest;
  float beta2, beta2_rest;
  float epsilon;
  float adam_rate;    // rate / (1 - beta1^t)
  float adam_root;    // 1 / sqrt(1 - beta2^t)
  float lamb_moment;  // 1 / (1 - beta1^t)
};

// Each updates w and the slots in place; they are inlined into one loop per instruction set.
struct SgdMath {
  static constexpr int kSlots = 0;
  static inline void Step(const UpdateConstants& c, float g, float& w, float&, float&) {
    g = g * c.scale + c.decay * w;
    w = w - c.rate * g;
  }
};

struct MomentumMath {
  static constexpr int kSlots = 1;
  static inline void Step(const UpdateConstants& c, float g, float& w, float& v, float&) {
    g = g * c.scale + c.decay * w;
    v = c.momentum * v + g;
    w = w - c.rate * v;
  }
};

struct NesterovMath {
  static constexpr int kSlots = 1;
  static inline void Step(const UpdateConstants& c, float g, float& w, float& v, float&) {
    g = g * c.scale + c.decay * w;
    v = c.momentum * v + g;
    w = w - c.rate * (g + c.momentum * v);
  }
};

struct AdagradMath {
  static constexpr int kSlots = 1;
  static inline void Step(const UpdateConstants& c, float g, float& w, float& h, float&) {
    g = g * c.scale + c.decay * w;
    h = h + g * g;
    w = w - (c.rate * g) / (__builtin_sqrtf(h) + c.epsilon);
  }
};

// keep is 1 for adam (w * 1 is w), decay is 0 for adamw.
struct AdamMath {
  static constexpr int kSlots = 2;
  static inline void Step(const UpdateConstants& c, float g, float& w, float& m, float& v) {
    g = g * c.scale + c.decay * w;
    m = c.beta1 * m + c.beta1_rest * g;
    v = c.beta2 * v + c.beta2_rest * (g * g);
    w = w * c.keep - (c.adam_rate * m) / (__builtin_sqrtf(v) * c.adam_root + c.epsilon);
  }
};

// Updates the moments only: w waits until the block's norms are known.
struct LambMath {
  static constexpr int kSlots = 2;
  static inline void Step(const UpdateConstants& c, float g, float&, float& m, float& v) {
    g = g * c.scale;
    m = c.beta1 * m + c.beta1_rest * g;
    v = c.beta2 * v + c.beta2_rest * (g * g);
  }
  // The vector r that rate and trust ratio multiply.
  static inline float Direction(const UpdateConstants& c, float w, float m, float v) {
    return (c.lamb_moment * m) / (__builtin_sqrtf(v) * c.adam_root + c.epsilon) + c.own_decay * w;
  }
};

struct StatisticMath {
  static constexpr int kSlots = 0;
  static inline void Step(const UpdateConstants& c, float g, float& w, float&, float&) {
    w = c.rest * w + c.momentum * (g * c.scale);
  }
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_UPDATE_MATH_H_
