// The word by which a browser knows the page's own script from any other.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_

#include <string>

namespace starling {

// 128 random bits as hexadecimal digits; another one at each call.
std::string PageNonce();

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_PAGE_NONCE_H_
