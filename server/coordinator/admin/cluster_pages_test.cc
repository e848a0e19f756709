// Tests the coordinator's pages over loopback, with the real core behind them.
#include "server/coordinator/admin/cluster_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <string>

#include "common/admin/testing/http_client.h"
#include "common/version/version.h"
#include "server/coordinator/store/testing/memory_store.h"

namespace starling::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ClusterPagesTest : public testing::Test {
 protected:
  ClusterPagesTest()
      : admin_(admin::Admin::Start("127.0.0.1:0", {PeerRole::kCoordinator, "coordinator"}).value()),
        host_(CoordinatorHost::Start({}, {.store = std::make_unique<MemoryStore>(),
                                          .on_fatal = [](const absl::Status&) {}})
                  .value()) {
    ShowCluster(host_.get(), admin_.get());
  }
  ~ClusterPagesTest() override { admin_->BeginShutdown(); }

  std::string Ask(absl::string_view target) { return admin::Get(admin_->port(), target); }
  static std::string Body(const std::string& reply) {
    return reply.substr(reply.find("\r\n\r\n") + 4);
  }
  static std::string Header(const std::string& reply, const std::string& name) {
    const size_t begin = reply.find("\r\n" + name + ": ") + name.size() + 4;
    return reply.substr(begin, reply.find("\r\n", begin) - begin);
  }

  void Register(Role role, const std::string& name) {
    RegisterRequest request;
    request.set_role(role);
    request.set_name(name);
    request.set_address("127.0.0.1:1");
    request.set_nonce(std::hash<std::string>()(name) | 1);
    request.mutable_version()->set_version("0.1.0");
    request.mutable_version()->set_protocol(ProtocolVersion());
    std::promise<bool> done;
    host_->Call(
        [&](CallId call) {
          return event::Register{call, request};
        },
        [&](CallReply reply) { done.set_value(std::holds_alternative<RegisterReply>(reply)); });
    ASSERT_TRUE(done.get_future().get());
  }

  std::unique_ptr<admin::Admin> admin_;
  std::unique_ptr<CoordinatorHost> host_;
};

TEST_F(ClusterPagesTest, IsReadyAndWell) {
  EXPECT_THAT(Ask("/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ClusterPagesTest, WhoRegistersIsShown) {
  Register(WORKER, "worker-0");
  Register(SHARD, "ps-0");
  const std::string reply = Ask("/status.json");
  EXPECT_EQ(Header(reply, "Content-Type"), "application/json");
  const nlohmann::json status = nlohmann::json::parse(Body(reply));
  EXPECT_EQ(status["workers"][0]["name"], "worker-0");
  EXPECT_EQ(status["shards"][0]["name"], "ps-0");
  EXPECT_EQ(status["generation"], 1);
  EXPECT_THAT(Ask("/metrics"), HasSubstr("starling_coordinator_shards{state=\"ready\"}"));
}

// The page is one file: it fetches from its own origin only, and runs only its own script.
TEST_F(ClusterPagesTest, ThePageIsSelfContained) {
  const std::string reply = Ask("/");
  EXPECT_EQ(Header(reply, "Content-Type"), "text/html; charset=utf-8");
  const std::string page = Body(reply);
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  EXPECT_THAT(page, EndsWith("</html>\n"));
  for (const char* outside :
       {"http://", "https://", " src=", "@import", "url(", "PAGE_NONCE", "innerHTML"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  const std::string policy = Header(reply, "Content-Security-Policy");
  const size_t begin = policy.find("script-src 'nonce-") + 18;
  const std::string nonce = policy.substr(begin, policy.find('\'', begin) - begin);
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_THAT(page, HasSubstr("<script nonce=\"" + nonce + "\">"));
  EXPECT_THAT(page, HasSubstr("<style nonce=\"" + nonce + "\">"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(Ask("/"), Not(HasSubstr(nonce))) << "a nonce is used once";
}

TEST_F(ClusterPagesTest, CurvesOfNoJob) {
  EXPECT_THAT(Ask("/curves.json?job=none"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("/curves.json"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(ClusterPagesTest, ACoordinatorThatIsClosedIsSaid) {
  host_->BeginShutdown();
  EXPECT_THAT(Ask("/status.json"), StartsWith("HTTP/1.1 503 "));
  // A scrape without any series would say that there are no jobs.
  EXPECT_THAT(Ask("/metrics"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask("/metrics"), HasSubstr("\r\n\r\nthe coordinator's thread does not answer: "));
}

}  // namespace
}  // namespace starling::coordinator
