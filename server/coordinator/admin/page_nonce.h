// The nonce by which a browser recognizes the page's own script.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_

#include <string>

namespace starling::coordinator {

// Returns 128 random bits as hexadecimal digits, different at each call.
std::string PageNonce();

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_
