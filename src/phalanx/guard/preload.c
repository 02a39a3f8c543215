/* Closes the ports of a task to everybody but its job; loaded before the program with LD_PRELOAD.

   TensorFlow's servers bind all interfaces and run whatever is sent to them. This library changes
   three functions of the C library, for TCP only:

     bind             a wildcard address becomes the task's own address
     accept, accept4  a connection from a host that is not in the job is closed before it is returned

   PHALANX_GUARD_BIND   the task's own address, or * to leave wildcards alone
   PHALANX_GUARD_PEERS  the hosts of the job: addresses and names, separated by commas; * is any
   PHALANX_GUARD_ALLOW  more hosts, set by the user
   PHALANX_GUARD_OPEN   ports to which neither rule applies, set by the user

   Connections from this host are accepted. A name is resolved when an unknown address connects, and
   again after that, because a container that restarts gets a new address. Port 0 is not changed in
   `bind`: clients bind it too, before they connect to other hosts. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_OPEN_PORTS = 64, MAX_REPORTS = 8 };

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
} address_t;

static int (*next_bind)(int, const struct sockaddr *, socklen_t);
static int (*next_accept4)(int, struct sockaddr *, socklen_t *, int);

static pthread_once_t is_read = PTHREAD_ONCE_INIT;
static bool active, narrows, accepts_all;
static struct in6_addr own; /* IPv4 addresses are kept as ::ffff:a.b.c.d, here and below */
static in_port_t open_ports[MAX_OPEN_PORTS];
static int open_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *names;
static struct in6_addr *peers;
static size_t peer_count;
static double resolve_after;
static struct in6_addr reported[MAX_REPORTS];
static int report_count;

/* Its presence in a process tells Phalanx that the library is loaded. */
int phalanx_guard_is_active(void) { return active; }

static struct in6_addr map_v4(struct in_addr v4) {
    struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&mapped.s6_addr[12], &v4, sizeof v4);
    return mapped;
}

static bool parse(const char *text, struct in6_addr *found) {
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) == 1) {
        *found = map_v4(v4);
        return true;
    }
    return inet_pton(AF_INET6, text, found) == 1;
}

static struct in6_addr address_of(const address_t *from) {
    return from->any.sa_family == AF_INET ? map_v4(from->v4.sin_addr) : from->v6.sin6_addr;
}

static bool is_inet(const address_t *from) {
    return from->any.sa_family == AF_INET || from->any.sa_family == AF_INET6;
}

static bool is_wildcard(struct in6_addr address) {
    struct in6_addr none = map_v4((struct in_addr){0});
    return IN6_IS_ADDR_UNSPECIFIED(&address) || IN6_ARE_ADDR_EQUAL(&address, &none);
}

static bool is_loopback(struct in6_addr address) {
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

static bool is_open(in_port_t port) {
    for (int i = 0; i < open_count; i++)
        if (open_ports[i] == port) return true;
    return false;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void add_peer(struct in6_addr address) {
    struct in6_addr *grown = realloc(peers, (peer_count + 1) * sizeof *peers);
    if (!grown) return;
    peers = grown;
    peers[peer_count++] = address;
}

static bool is_listed(struct in6_addr address) {
    for (size_t i = 0; i < peer_count; i++)
        if (IN6_ARE_ADDR_EQUAL(&peers[i], &address)) return true;
    return false;
}

/* Replaces the list of peers by what their names mean now. Those of before stay, too, if a name server
   gives no answer: otherwise a stranger could lock the job out meanwhile. */
static void resolve_peers(void) {
    char *copy = strdup(names), *rest = NULL;
    if (!copy) return;
    struct in6_addr *before = peers;
    size_t before_count = peer_count;
    bool is_complete = true;
    peers = NULL;
    peer_count = 0;
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        struct in6_addr address;
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
        if (parse(name, &address)) {
            add_peer(address);
            continue;
        }
        int status = getaddrinfo(name, NULL, &hints, &found);
        if (status == EAI_AGAIN) is_complete = false;
        if (status == 0) {
            for (struct addrinfo *each = found; each; each = each->ai_next)
                add_peer(address_of((const address_t *)each->ai_addr));
            freeaddrinfo(found);
        }
    }
    for (size_t i = 0; !is_complete && i < before_count; i++)
        if (!is_listed(before[i])) add_peer(before[i]);
    free(before);
    free(copy);
}

static bool is_peer(struct in6_addr address) {
    if (is_loopback(address) || (narrows && IN6_ARE_ADDR_EQUAL(&own, &address))) return true;
    pthread_mutex_lock(&lock);
    bool listed = is_listed(address);
    double started = now();
    if (!listed && started >= resolve_after) {
        resolve_peers();
        double ended = now();
        /* Strangers must not keep a server busy with name resolution. */
        resolve_after = ended + 1 + 10 * (ended - started);
        listed = is_listed(address);
    }
    pthread_mutex_unlock(&lock);
    return listed;
}

static void report(struct in6_addr address, in_port_t port) {
    char text[INET6_ADDRSTRLEN] = "?";
    pthread_mutex_lock(&lock);
    bool is_new = report_count < MAX_REPORTS;
    for (int i = 0; is_new && i < report_count; i++)
        is_new = !IN6_ARE_ADDR_EQUAL(&reported[i], &address);
    if (is_new) reported[report_count++] = address;
    pthread_mutex_unlock(&lock);
    if (!is_new) return;
    if (IN6_IS_ADDR_V4MAPPED(&address))
        inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof text);
    else
        inet_ntop(AF_INET6, &address, text, sizeof text);
    dprintf(2,
            "phalanx: refused a connection from %s to port %d: it is not a host of this job "
            "(SECURITY.md tells how to allow it)\n",
            text, ntohs(port));
}

static void fail(const char *variable, const char *text) {
    dprintf(2, "phalanx: %s is '%s', which cannot be used: run the program with phalanx guard\n",
            variable, text);
    _exit(2);
}

static void unlock_after_fork(void) { pthread_mutex_init(&lock, NULL); }

static void read_environment(void) {
    next_bind = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    next_accept4 = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    const char *bind_to = getenv("PHALANX_GUARD_BIND"), *ports = getenv("PHALANX_GUARD_OPEN");
    const char *hosts = getenv("PHALANX_GUARD_PEERS"), *more = getenv("PHALANX_GUARD_ALLOW");
    if (!bind_to) return;
    narrows = strcmp(bind_to, "*") != 0;
    if (narrows && !parse(bind_to, &own)) fail("PHALANX_GUARD_BIND", bind_to);
    accepts_all = hosts && strcmp(hosts, "*") == 0;
    if (asprintf(&names, "%s,%s", hosts ? hosts : "", more ? more : "") < 0)
        fail("PHALANX_GUARD_PEERS", "too long");
    for (const char *rest = ports; rest && *rest;) {
        char *end;
        unsigned long port = strtoul(rest, &end, 10);
        bool ends = *end == ',' || *end == '\0';
        if (end == rest || !ends || port > 65535 || open_count == MAX_OPEN_PORTS)
            fail("PHALANX_GUARD_OPEN", ports);
        open_ports[open_count++] = htons((in_port_t)port);
        rest = *end ? end + 1 : end;
    }
    pthread_atfork(NULL, NULL, unlock_after_fork);
    active = true;
}

/* A wrong variable ends the program at its start; `bind` and `accept` may come even earlier, from the
   constructors of other libraries. */
__attribute__((constructor)) static void ready(void) { pthread_once(&is_read, read_environment); }

/* Replaces a wildcard address; one that the program has chosen itself stays. */
static void narrow(int fd, address_t *to) {
    int type = 0, v6_only = 0;
    socklen_t length = sizeof type;
    if (to->v4.sin_port == 0 || is_open(to->v4.sin_port) || !is_wildcard(address_of(to))) return;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) return;
    bool has_v4 = IN6_IS_ADDR_V4MAPPED(&own);
    if (to->any.sa_family == AF_INET) {
        /* The job uses IPv6 only: nobody in it connects to this socket. */
        struct in_addr v4 = {htonl(INADDR_LOOPBACK)};
        if (has_v4) memcpy(&v4, &own.s6_addr[12], sizeof v4);
        to->v4.sin_addr = v4;
        return;
    }
    length = sizeof v6_only;
    getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &length);
    to->v6.sin6_addr = has_v4 && v6_only ? in6addr_loopback : own;
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    address_t to;
    ready();
    if (!active || !narrows || !address || length > sizeof to || length < sizeof to.v4)
        return next_bind(fd, address, length);
    memcpy(&to, address, length);
    if (to.any.sa_family == AF_INET || (to.any.sa_family == AF_INET6 && length >= sizeof to.v6))
        narrow(fd, &to);
    return next_bind(fd, &to.any, length);
}

static bool may_connect(int listener, const address_t *from) {
    if (!is_inet(from)) return true;
    struct in6_addr address = address_of(from);
    if (is_peer(address)) return true;
    address_t at;
    socklen_t length = sizeof at;
    bool known = getsockname(listener, &at.any, &length) == 0;
    if (known && is_open(at.v4.sin_port)) return true;
    report(address, known ? at.v4.sin_port : 0);
    return false;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    ready();
    if (!active || accepts_all) return next_accept4(fd, address, length, flags);
    while (true) {
        address_t from = {0};
        socklen_t size = sizeof from;
        int accepted = next_accept4(fd, &from.any, &size, flags);
        if (accepted < 0) return accepted;
        if (may_connect(fd, &from)) {
            if (address && length) {
                memcpy(address, &from, *length < size ? *length : size);
                *length = size;
            }
            return accepted;
        }
        /* A reset leaves no connection in TIME_WAIT. The next round blocks, or fails with EAGAIN,
           exactly as if this connection had never come. */
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(accepted);
    }
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    return accept4(fd, address, length, 0);
}
