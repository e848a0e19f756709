#include "tools/cli/grpc_client.h"

#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/transport/grpc_util.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "proto/daemon.grpc.pb.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);

template <typename Service, typename Request, typename Reply>
using Method = grpc::Status (Service::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

class GrpcClient : public Client {
 public:
  explicit GrpcClient(const GrpcClientOptions& options)
      : options_(options),
        channel_(MakeChannel(options.address, options.security, {PeerRole::kCoordinator})),
        stub_(CoordinatorService::NewStub(channel_)) {}

  absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request) override {
    // Safe to retry: the nonce makes it idempotent.
    return Call(&CoordinatorService::Stub::Submit, request, options_.submit_deadline);
  }
  absl::StatusOr<JobReply> GetJob(const std::string& name) override {
    return Call(&CoordinatorService::Stub::GetJob, Named(name), options_.call_deadline);
  }
  absl::StatusOr<ListJobsReply> ListJobs(const ListJobsRequest& request) override {
    return Call(&CoordinatorService::Stub::ListJobs, request, options_.call_deadline);
  }
  absl::StatusOr<ListWorkersReply> ListWorkers() override {
    return AllPages(&CoordinatorService::Stub::ListWorkers, ListWorkersRequest(),
                    [](ListWorkersReply& all, const ListWorkersReply& page) {
                      all.mutable_workers()->MergeFrom(page.workers());
                    });
  }
  absl::StatusOr<ListShardsReply> ListShards() override {
    return AllPages(&CoordinatorService::Stub::ListShards, ListShardsRequest(),
                    [](ListShardsReply& all, const ListShardsReply& page) {
                      all.mutable_shards()->MergeFrom(page.shards());
                    });
  }
  absl::Status CancelJob(const std::string& name) override {
    return Call(&CoordinatorService::Stub::CancelJob, Named(name), options_.call_deadline).status();
  }
  absl::Status DeleteJob(const std::string& name) override {
    const absl::Status status =
        Call(&CoordinatorService::Stub::DeleteJob, Named(name), options_.call_deadline).status();
    return DeletedBefore(status) ? absl::OkStatus() : status;
  }
  absl::StatusOr<SetPolicyReply> SetPolicy(const SetPolicyRequest& request) override {
    return Call(&CoordinatorService::Stub::SetPolicy, request, options_.call_deadline);
  }
  absl::StatusOr<CurvesReply> Curves(const std::string& name) override {
    return Call(&CoordinatorService::Stub::Curves, Named<CurvesRequest>(name),
                options_.call_deadline);
  }
  absl::StatusOr<LogsReply> Logs(const LogsRequest& request) override {
    return Call(&CoordinatorService::Stub::Logs, request,
                options_.call_deadline + absl::Seconds(request.wait_seconds()));
  }
  absl::StatusOr<ExplainReply> Explain(const std::string& name) override {
    return Call(&CoordinatorService::Stub::Explain, Named<ExplainRequest>(name),
                options_.call_deadline);
  }
  absl::StatusOr<CreateCheckpointReply> CreateCheckpoint(
      const CreateCheckpointRequest& request) override {
    // A retry takes one more at worst: if the coordinator was started again meanwhile.
    return Call(&CoordinatorService::Stub::CreateCheckpoint, request, options_.checkpoint_deadline);
  }
  absl::StatusOr<ListCheckpointsReply> ListCheckpoints(const std::string& job) override {
    return AllPages(&CoordinatorService::Stub::ListCheckpoints, Named<ListCheckpointsRequest>(job),
                    [](ListCheckpointsReply& all, const ListCheckpointsReply& page) {
                      all.mutable_checkpoints()->MergeFrom(page.checkpoints());
                    });
  }
  absl::Status DeleteCheckpoint(const std::string& id) override {
    DeleteCheckpointRequest request;
    request.set_id(id);
    const absl::Status status =
        Call(&CoordinatorService::Stub::DeleteCheckpoint, request, options_.checkpoint_deadline)
            .status();
    return DeletedBefore(status) ? absl::OkStatus() : status;
  }

 private:
  template <typename Request = JobRequest>
  static Request Named(const std::string& name) {
    Request request;
    request.set_name(name);
    return request;
  }

  // An earlier attempt succeeded, and its answer was lost.
  bool DeletedBefore(const absl::Status& status) const {
    return absl::IsNotFound(status) && attempts_ > 1;
  }

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Method<CoordinatorService, Request, Reply> method,
                             const Request& request, absl::Duration deadline) {
    const absl::Time begin = MonotonicNow();
    std::string first;  // why a coordinator shuts down arrives before it is gone
    for (attempts_ = 1;; ++attempts_) {
      grpc::ClientContext context;
      AddIdentity({PeerRole::kClient, "cli"}, &context);
      context.set_deadline(GrpcDeadline(deadline));
      Reply reply;
      const absl::Status status = FromGrpc((stub_.get()->*method)(&context, request, &reply));
      if (status.ok()) return reply;
      // No call is cancelled here: kCancelled means that the coordinator went down during the call.
      const bool unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                               absl::IsCancelled(status);
      if (absl::IsUnimplemented(status)) return NoCoordinatorThere();
      if (absl::IsDeadlineExceeded(status)) {
        if (std::is_same_v<Request, SubmitRequest>)
          return TakesTooLong("inspection of the data", "workers", "submit", deadline);
        if (std::is_same_v<Request, CreateCheckpointRequest>)
          return TakesTooLong("checkpoint", "shards", "ask", deadline);
        if (std::is_same_v<Request, DeleteCheckpointRequest>)  // the disk is slow
          return TakesTooLong("deletion", "shards", "delete it", deadline);
      }
      if (!unreachable) return status;
      if (first.empty()) first = std::string(status.message());
      if (MonotonicNow() - begin >= options_.patience)
        return Unreachable(status, first, MonotonicNow() - begin);
      // Waits on the channel instead of sleeping: gRPC connects only while a caller waits.
      const absl::Time next = MonotonicNow() + kRetryInterval;
      channel_->WaitForConnected(GrpcDeadline(kRetryInterval));
      absl::SleepFor(next - MonotonicNow());
    }
  }

  // The first page, with the entries of all other pages appended.
  template <typename Request, typename Reply, typename Add>
  absl::StatusOr<Reply> AllPages(Method<CoordinatorService, Request, Reply> method, Request request,
                                 Add add) {
    absl::StatusOr<Reply> all = Call(method, request, options_.call_deadline);
    while (all.ok() && !all->next().empty()) {
      request.mutable_page()->set_after(all->next());
      const absl::StatusOr<Reply> page = Call(method, request, options_.call_deadline);
      if (!page.ok()) return page.status();
      add(*all, *page);
      all->set_next(page->next());
    }
    return all;
  }

  absl::Status NoCoordinatorThere() const {
    return absl::UnavailableError(absl::StrCat(
        "what listens at ", options_.address,
        " is no coordinator: a shard or a worker has other ports; give the "
        "coordinator's address with --coordinator HOST:PORT, or STARLING_COORDINATOR"));
  }

  absl::Status TakesTooLong(const char* what, const char* who, const char* retry,
                            absl::Duration waited) const {
    return absl::DeadlineExceededError(
        absl::StrCat("the ", what, " takes too long: the coordinator at ", options_.address,
                     " has not answered within ", absl::FormatDuration(waited),
                     "; see its log and the ", who, "' logs, then ", retry, " again"));
  }

  absl::Status Unreachable(const absl::Status& last, const std::string& first,
                           absl::Duration waited) const {
    return absl::UnavailableError(
        absl::StrCat("the coordinator at ", options_.address, " was not reached for ",
                     absl::StrFormat("%.1f", absl::ToDoubleSeconds(waited)), " s; ",
                     first == last.message() ? "" : absl::StrCat("first error: ", first, "; "),
                     "last error: ", std::string(last.message()), ".\n", Advice(last)));
  }

  // Judges by gRPC's error text when one side speaks TLS and the other does not.
  std::string Advice(const absl::Status& last) const {
    const bool tls = UsesTls(options_.security.get());
    if (!tls && absl::StrContains(last.message(), "Socket closed")) {
      return "Something listens there and ends each connection, as a port with TLS does. If the "
             "cluster has TLS, "
             "give --tls-cert, --tls-key and --tls-ca (docs/security.md)";
    }
    if (tls && absl::StrContains(last.message(), "wrong version number")) {
      return "What listens there speaks without TLS: leave out --tls-cert, --tls-key and --tls-ca "
             "where the "
             "cluster has none, or look whether another program has the port";
    }
    return "If it does not run, start a local cluster with: starling local up --shards 2 --workers "
           "2 --detach";
  }

  const GrpcClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<CoordinatorService::Stub> stub_;
  int attempts_ = 0;  // of the latest call
};

constexpr absl::Duration kDaemonDeadline = absl::Seconds(5);

class GrpcDaemons : public Daemons {
 public:
  explicit GrpcDaemons(std::shared_ptr<const LinkSecurity> security)
      : security_(std::move(security)) {}

  absl::StatusOr<InfoReply> Info(const std::string& address) override {
    return Call<InfoReply>(&Daemon::Stub::Info, address, InfoRequest(), kDaemonDeadline);
  }
  absl::StatusOr<NodeReply> Node(const std::string& address) override {
    return Call<NodeReply>(&Daemon::Stub::Node, address, NodeRequest(), kDaemonDeadline);
  }
  absl::StatusOr<MeasureReply> Measure(const std::string& address,
                                       const MeasureRequest& request) override {
    return Call<MeasureReply>(&Daemon::Stub::Measure, address, request,
                              kDaemonDeadline + absl::Seconds(request.deadline_seconds()));
  }

  absl::StatusOr<SpansReply> Spans(const std::string& address,
                                   const SpansRequest& request) override {
    return Call<SpansReply>(&Daemon::Stub::Spans, address, request, kDaemonDeadline);
  }

 private:
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(Method<Daemon, Request, Reply> method, const std::string& address,
                             const Request& request, absl::Duration deadline) {
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "cli"}, &context);
    context.set_deadline(GrpcDeadline(deadline));
    Reply reply;
    const absl::Status status = FromGrpc((StubOf(address)->*method)(&context, request, &reply));
    if (status.ok()) return reply;
    return Prefixed(address, status);
  }

  Daemon::Stub* StubOf(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    std::unique_ptr<Daemon::Stub>& stub = stubs_[address];
    if (stub == nullptr) stub = Daemon::NewStub(MakeChannel(address, security_));
    return stub.get();
  }

  const std::shared_ptr<const LinkSecurity> security_;
  absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<Daemon::Stub>> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Client> MakeGrpcClient(const GrpcClientOptions& options) {
  return std::make_unique<GrpcClient>(options);
}

std::unique_ptr<Daemons> MakeGrpcDaemons(std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcDaemons>(std::move(security));
}

}  // namespace starling::cli
