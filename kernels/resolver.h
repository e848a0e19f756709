// Computes one operator's geometry. Collects the spec's facts; the first error wins and turns later
// steps into no-ops. Private to kernels/geometry*.cc, which define its methods by operator family.
#ifndef STARLING_KERNELS_RESOLVER_H_
#define STARLING_KERNELS_RESOLVER_H_

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/geometry.h"

namespace starling {

// "[2, 3]".
std::string ShapeText(const Shape& shape);

class GeometryResolver {
 public:
  explicit GeometryResolver(const OperatorSpec& spec) : spec_(spec) {}

  // Called once.
  absl::StatusOr<OperatorGeometry> Resolve();

  // How many inputs and parameters an operator has, and the method that resolves the rest.
  struct Row {
    const char* name;
    OperatorGeometry::Op op;
    void (GeometryResolver::*resolve)();
    size_t inputs_min, inputs_max;
    size_t parameters_min, parameters_max;
  };

  // geometry_planes.cc
  void Conv();
  void Pool();
  void BatchNorm();
  void GlobalAvgPool();
  // geometry.cc
  void SameShape();
  void Dropout();
  void Clip();
  void Gelu();
  // geometry_layout.cc
  void Flatten();
  void Concat();
  void Slice();
  void Reshape();
  void Transpose();
  // geometry_rows.cc
  void Linear();
  void LayerNorm();
  void GatherRows();
  void Embedding();
  void PositionEmbedding();
  void MatMul();
  void Attention();
  // geometry_losses.cc
  void SoftmaxCrossEntropy();
  void ElementwiseLoss();
  void NegativeSum();

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("operator '", spec_.name, "' (", spec_.op, "): ", parts...));
    }
  }
  void ExpectShape(const char* what, const Shape& given, const Shape& expected);
  void ExpectRank(const char* what, const Shape& given, size_t rank);
  // The operator works on a sample's rows, so a sample needs at least one dimension.
  bool HasRows();
  void ExpectSameInputs();

  const AttributeValue* Find(const char* name);
  std::pair<int64_t, int64_t> Pair(const char* name, std::pair<int64_t, int64_t> otherwise,
                                   int64_t least);
  int64_t Int(const char* name, int64_t otherwise, int64_t least);
  bool Flag(const char* name);
  double Double(const char* name, double otherwise);
  double Epsilon();
  std::vector<int64_t> Ints(const char* name);
  // Attribute "axis" of a sample, as an axis of the value; 0 after a failure.
  int64_t Axis();
  bool MeanReduction(bool otherwise);
  // An attribute that must be present and equal to `expected`.
  void ExpectCount(const char* name, int64_t expected);

  void CheckCounts(const Row& row);
  void CheckShapes();
  void Windows(int64_t* out_height, int64_t* out_width);
  void CheckAttributes();

  const Shape& input() const { return spec_.input_shapes[0]; }

  const OperatorSpec& spec_;
  OperatorGeometry g_;
  absl::Status status_;
  std::set<std::string> known_attributes_;
};

}  // namespace starling

#endif  // STARLING_KERNELS_RESOLVER_H_
