#include "common/transport/access.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace starling {
namespace {

constexpr PeerRole kClient = PeerRole::kClient;
constexpr PeerRole kWorker = PeerRole::kWorker;
constexpr PeerRole kShard = PeerRole::kShard;
constexpr PeerRole kCoordinator = PeerRole::kCoordinator;

struct MethodRow {
  absl::string_view method;
  RoleSet callers;
};

constexpr MethodRow kMethods[] = {
    // Daemons to the coordinator.
    {"/starling.CoordinatorService/Register", {kWorker, kShard}},
    {"/starling.CoordinatorService/ReportWorker", {kWorker}},
    {"/starling.CoordinatorService/ReportShard", {kShard}},
    {"/starling.CoordinatorService/Heartbeat", {kShard}},
    // Clients to the coordinator.
    {"/starling.CoordinatorService/Submit", {kClient}},
    {"/starling.CoordinatorService/GetJob", {kClient}},
    {"/starling.CoordinatorService/ListJobs", {kClient}},
    {"/starling.CoordinatorService/ListWorkers", {kClient}},
    {"/starling.CoordinatorService/ListShards", {kClient}},
    {"/starling.CoordinatorService/CancelJob", {kClient}},
    {"/starling.CoordinatorService/DeleteJob", {kClient}},
    {"/starling.CoordinatorService/SetPolicy", {kClient}},
    {"/starling.CoordinatorService/Logs", {kClient}},
    {"/starling.CoordinatorService/Curves", {kClient}},
    {"/starling.CoordinatorService/Explain", {kClient}},
    {"/starling.CoordinatorService/CreateCheckpoint", {kClient}},
    {"/starling.CoordinatorService/ListCheckpoints", {kClient}},
    {"/starling.CoordinatorService/DeleteCheckpoint", {kClient}},
    // The data plane. SendersOf decides which frames may go over the stream.
    {"/starling.ParameterServer/Exchange", {kClient, kWorker, kShard, kCoordinator}},
    // Served by every daemon. The daemon that measures a path calls Echo.
    {"/starling.Daemon/Info", kAllRoles},
    {"/starling.Daemon/Echo", kAllRoles},
    {"/starling.Daemon/Spans", {kClient, kCoordinator}},
    {"/starling.Daemon/Node", {kClient, kCoordinator}},
    {"/starling.Daemon/Measure", {kClient, kCoordinator}},
    // gRPC's own services.
    {"/grpc.health.v1.Health/Check", kAllRoles},
    {"/grpc.health.v1.Health/Watch", kAllRoles},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {kClient}},
};

}  // namespace

std::string RoleSet::ToString() const {
  std::vector<std::string> names;
  for (const PeerRole role : kPeerRoles) {
    if (has(role)) names.push_back(PeerRoleName(role));
  }
  return names.empty() ? "nobody" : absl::StrJoin(names, " or ");
}

RoleSet CallersOf(absl::string_view method) {
  for (const MethodRow& row : kMethods) {
    if (row.method == method) return row.callers;
  }
  return {};
}

bool IsGeneralMethod(absl::string_view method) { return absl::StartsWith(method, "/grpc."); }

absl::Status CheckCall(absl::string_view method, PeerRole caller) {
  const RoleSet callers = CallersOf(method);
  if (callers.has(caller)) return absl::OkStatus();
  if (callers.empty()) {
    return absl::UnimplementedError(absl::StrCat("no method ", method.substr(0, 200)));
  }
  return absl::PermissionDeniedError(absl::StrCat(method, " may be called by a ",
                                                  callers.ToString(), "; the caller is a ",
                                                  PeerRoleName(caller)));
}

RoleSet SendersOf(FrameType type) {
  switch (type) {
    case FrameType::kPush: return {kWorker};
    case FrameType::kClose: return {kWorker};
    // Non-worker pulls: CheckFrameSender.
    case FrameType::kPull: return {kWorker, kClient, kShard, kCoordinator};
    case FrameType::kDecision: return {kShard};
    case FrameType::kReplicate: return {kShard};
    case FrameType::kCredit: return {kWorker, kClient, kShard, kCoordinator};
    // A shard's answers.
    case FrameType::kAck: return {};
    case FrameType::kValue: return {};
    case FrameType::kError: return {};
    // Not sent yet.
    case FrameType::kActivation: return {};
  }
  return {};
}

absl::Status CheckFrameSender(const FrameHeader& header, PeerRole sender) {
  const RoleSet senders = SendersOf(header.type);
  if (!senders.has(sender)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "a frame of type ", FrameTypeName(header.type), " may be sent to a shard by a ",
        senders.ToString(), "; the sender is a ", PeerRoleName(sender)));
  }
  if (sender != kWorker && header.type == FrameType::kPull &&
      (header.flags & frame_flags::kReader) == 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("a ", PeerRoleName(sender),
                     " may only read: expected a pull with the reader's flag, got one without"));
  }
  return absl::OkStatus();
}

}  // namespace starling
