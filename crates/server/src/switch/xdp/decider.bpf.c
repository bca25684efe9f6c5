// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The decider of FissLock as an XDP program: it decides at the driver, before the network stack sees a packet.
//
// What a packet does is defined by `locks/src/fisslock/pipeline` and `server/src/switch/core.rs`; this file does the same, and
// `tests.rs` beside it runs both side by side on random packets. The format is in `locks/src/fisslock/datagram.rs`.
//
//   frame -> decide --- XDP_PASS ------ not a datagram to this decider: untouched
//                   --- XDP_DROP ------ malformed, forged, of another epoch, a packet that nothing comes of
//                   --- XDP_TX -------- one packet, out where the frame came in
//                   --- redirect ------ one packet, out of another interface
//                   --- broadcast ----- GRANT and ACQUIRE for one: every port has two entries in `copies`, and the program of
//                                       the entry (grant_copy, forward_copy) makes its packet of the frame, or drops it
//
// Registers: 19 bits per lock as in the model, 32 locks to a group, and per group one spin lock of 32 bits and the epoch that
// its registers are of: 21 bits per lock. A lane's registers are those of `once.rs`. A packet that is being decided has left
// verdict 0 in its lane; a copy of it that comes meanwhile, on another CPU, is dropped, and sent again.
//
// Registers of an earlier epoch count as empty, and the first packet of a later one empties them. So a recovery writes only
// those that are not empty, and need not wait for packets that are still being decided: these are of the earlier epoch, and
// find registers that are theirs, and soon nobody's, or registers of a later one, and leave them alone.
//
// What this program must not do: keep anything about a lock outside of the registers, or touch frames that are not its own.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define LOCKS_PER_GROUP 32
#define MACHINES 256
#define MAX_LANES 64
#define MAX_WAITERS 176
#define MAX_PORTS 16

struct ethernet {
	u8 to[6], from[6];
	u16 type;
};

struct ip {
	u8 version_and_length, service;
	u16 length, id, fragment;
	u8 hops, protocol;
	u16 sum;
	u32 from, to;
};

struct udp {
	u16 from, to, length, sum;
};

// A packet: the table in datagram.rs.
struct packet {
	u16 magic;
	u8 version, kind, from, to;
	u16 waiters;
	u64 lid, first, number, token;
	u32 epoch, zero;
	u64 sum;
};

#define HEAD ((int)sizeof(struct packet))
#define PACKET ((int)(sizeof(struct ethernet) + sizeof(struct ip) + sizeof(struct udp)))
_Static_assert(sizeof(struct ethernet) == 14 && sizeof(struct ip) == 20 && sizeof(struct udp) == 8, "headers");
_Static_assert(sizeof(struct packet) == 56, "the head of a packet");

enum kind { ACQUIRE = 1, RELEASE, FREE, GRANT, BAR, ACK, HELLO };
enum verdict { GRANTED = 1, JOINED, BARRED, SUSPENDED, TO_AGENT, DONE, REFUSED };

// Of the first word.
#define AGENT (1ULL << 48)
#define FRESH (1ULL << 49)
#define KEEP_BAR (1ULL << 50)
#define COUNTED (1ULL << 51)
#define WAS_GRANTED (1ULL << 52)
#define TWIN (1ULL << 53)
#define ECHO (1ULL << 54)
#define WAS_REFUSED (1ULL << 55)
#define TRIES (1ULL << 57)
#define FLAGS (0x3ffULL << 48)
#define SHARED (1ULL << 60)
#define HELD_SHARED (1ULL << 61)
#define NO_FIRST 0xcc00000000000000ULL
#define NO_WAITER 0xfffcff0000000000ULL
// Bits of a token below the stamp.
#define LOCAL_BITS 16

struct config {
	u32 epoch;
	// Nothing is decided.
	u32 closed;
	u64 locks;
	u32 lanes;
	// As in a frame.
	u16 port;
	// Whether only the addresses in `allowed` may send.
	u16 restricted;
};

struct group {
	struct bpf_spin_lock lock;
	u32 free, shared, bar;
	u8 inca[LOCKS_PER_GROUP], mid[LOCKS_PER_GROUP];
	u32 epoch;
};
_Static_assert(sizeof(struct group) * 8 == 21 * LOCKS_PER_GROUP, "19 bits per lock, one to keep CPUs apart, one of an epoch");

struct lanes {
	struct bpf_spin_lock lock;
	u32 seq[MAX_LANES];
	u8 verdict[MAX_LANES], agent[MAX_LANES];
	u32 epoch;
};

// Where a machine is, and as whom it knows the decider: learned from the first HELLO under its key. All as in a frame, but the interface.
struct address {
	u32 ip, own_ip, interface;
	u16 port, reached;
	u8 mac[6], own_mac[6];
	u32 zero;
};

struct peer {
	struct bpf_spin_lock lock;
	u32 known;
	u64 key[2];
	struct address address;
};

struct stamp {
	struct bpf_spin_lock lock;
	u32 zero;
	u64 stamp;
};

struct counts {
	u64 received, sent, grants, passed_on, malformed, forged;
};


struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct config);
} config SEC(".maps");

// As many as there are locks: set when it is loaded.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MACHINES);
	__type(key, u32);
	__type(value, struct lanes);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MACHINES);
	__type(key, u32);
	__type(value, struct peer);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct stamp);
} stamps_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} counters SEC(".maps");

// The decider's own addresses.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, u32);
} own SEC(".maps");

// Where clients may be.
struct subnet {
	u32 bits, ip;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 256);
	__type(key, struct subnet);
	__type(value, u32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} allowed SEC(".maps");

// Two entries for every interface: the program of one makes GRANTs, that of the other forwards ACQUIREs.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 2 * MAX_PORTS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} copies SEC(".maps");

// SipHash-2-4 of a packet and its tail.
struct sum {
	u64 key[2];
	u64 value;
	// Whether all waiters are what waiters can be.
	u64 sound;
};

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define ROUND                                                                                                                  \
	do {                                                                                                                   \
		v0 += v1;                                                                                                      \
		v2 += v3;                                                                                                      \
		v1 = ROTATE(v1, 13) ^ v0;                                                                                      \
		v3 = ROTATE(v3, 16) ^ v2;                                                                                      \
		v0 = ROTATE(v0, 32) + v3;                                                                                      \
		v2 += v1;                                                                                                      \
		v3 = ROTATE(v3, 21) ^ v0;                                                                                      \
		v1 = ROTATE(v1, 17) ^ v2;                                                                                      \
		v2 = ROTATE(v2, 32);                                                                                           \
	} while (0)
#define TAKE(word)                                                                                                             \
	do {                                                                                                                   \
		u64 taken = (word);                                                                                            \
		v3 ^= taken;                                                                                                   \
		ROUND;                                                                                                         \
		ROUND;                                                                                                         \
		v0 ^= taken;                                                                                                   \
	} while (0)

// A function of its own, which the kernel verifies once and not for every call. Returns 0 if the frame is too short.
__attribute__((noinline)) int sum_up(struct xdp_md *ctx, struct sum *sum)
{
	void *end = (void *)(long)ctx->data_end;
	u64 *words = (void *)(long)ctx->data + PACKET;
	u64 v0, v1, v2, v3, sound = 1;
	u32 waiters, i;

	if (!sum || (void *)words + HEAD > end)
		return 0;
	v0 = sum->key[0] ^ 0x736f6d6570736575ULL;
	v1 = sum->key[1] ^ 0x646f72616e646f6dULL;
	v2 = sum->key[0] ^ 0x6c7967656e657261ULL;
	v3 = sum->key[1] ^ 0x7465646279746573ULL;
	waiters = ((struct packet *)words)->waiters;
	TAKE(words[0]);
	TAKE(words[1]);
	TAKE(words[2]);
	TAKE(words[3]);
	TAKE(words[4]);
	TAKE(words[5]);
	for (i = 0; i < MAX_WAITERS && i < waiters; i++) {
		u64 *at = words + HEAD / 8 + i;
		u64 word;

		// The compiler must not make a subtraction of the comparison that the kernel's verifier looks for.
		asm volatile("" : "+r"(at));
		if ((void *)(at + 1) > end)
			return 0;
		word = *at;
		if (word & NO_WAITER || !(word & 0xff))
			sound = 0;
		TAKE(word);
	}
	TAKE((u64)(8 * (6 + waiters)) << 56);
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	sum->value = v0 ^ v1 ^ v2 ^ v3;
	sum->sound = sound;
	return 1;
}

// What a packet becomes on its way out.
struct change {
	u64 first, token;
	u8 kind, from, to;
	// Its tail stays behind.
	u8 bare;
};

// Where machine `mid` is, and its key. 0 if that is not known.
static __always_inline int find(u32 mid, struct address *address, u64 *key)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &mid);
	u32 known;

	if (!peer)
		return 0;
	bpf_spin_lock(&peer->lock);
	known = peer->known;
	key[0] = peer->key[0];
	key[1] = peer->key[1];
	*address = peer->address;
	bpf_spin_unlock(&peer->lock);
	return known != 0;
}

// Makes the frame the changed packet, to `address`. 0 if that cannot be.
static __always_inline int rewrite(struct xdp_md *ctx, const struct change *change, const struct address *address,
				   const u64 *key, u16 port)
{
	struct sum sum = { .key = { key[0], key[1] } };
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet *packet = data + PACKET;
	struct ethernet *ethernet;
	struct ip *ip;
	struct udp *udp;
	u32 length, check, waiters;
	int shorter;

	if ((void *)(packet + 1) > end)
		return 0;
	waiters = change->bare ? 0 : packet->waiters;
	length = HEAD + 8 * waiters;
	// Also what some card has left behind the packet.
	shorter = (int)(end - data) - (int)(PACKET + length);
	if (shorter < 0)
		return 0;
	if (shorter > 0 && bpf_xdp_adjust_tail(ctx, -shorter))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ethernet = data;
	ip = data + sizeof(*ethernet);
	udp = (void *)(ip + 1);
	packet = data + PACKET;
	if ((void *)(packet + 1) > end)
		return 0;
	packet->kind = change->kind;
	packet->from = change->from;
	packet->to = change->to;
	packet->waiters = waiters;
	packet->first = change->first;
	packet->token = change->token;
	if (!sum_up(ctx, &sum))
		return 0;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ethernet = data;
	ip = data + sizeof(*ethernet);
	udp = (void *)(ip + 1);
	packet = data + PACKET;
	if ((void *)(packet + 1) > end)
		return 0;
	packet->sum = sum.value;
	__builtin_memcpy(ethernet->to, address->mac, 6);
	__builtin_memcpy(ethernet->from, address->own_mac, 6);
	ip->version_and_length = 0x45;
	ip->service = 0;
	ip->length = bpf_htons(sizeof(*ip) + sizeof(*udp) + length);
	ip->id = 0;
	ip->fragment = bpf_htons(0x4000);
	ip->hops = 64;
	ip->protocol = 17;
	ip->sum = 0;
	ip->from = address->own_ip;
	ip->to = address->ip;
	check = bpf_htons(0x4500) + ip->length + bpf_htons(0x4000) + bpf_htons(64 << 8 | 17);
	check += (ip->from & 0xffff) + (ip->from >> 16) + (ip->to & 0xffff) + (ip->to >> 16);
	check = (check & 0xffff) + (check >> 16);
	check = (check & 0xffff) + (check >> 16);
	ip->sum = ~check;
	udp->from = port;
	udp->to = address->port;
	udp->length = bpf_htons(sizeof(*udp) + length);
	// IPv4 does without; the packet has a better one.
	udp->sum = 0;
	return 1;
}

static __always_inline struct config *configured(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&config, &only);
}

// What GRANT of a lock that others share, and the ACQUIRE that tells the agent of it, have for flags.
static __always_inline u64 joined_grant(u64 first)
{
	return (first & ~FLAGS) | FRESH | TWIN;
}

static __always_inline u64 joined_acquire(u64 first)
{
	return (first & ~(FLAGS & ~TRIES)) | COUNTED | WAS_GRANTED | TWIN;
}

// The frame of a broadcast becomes one of its two packets: `decide` has put the agent's machine into `to`, and the token into
// the place of the checksum.
static __always_inline int copy(struct xdp_md *ctx, int is_grant, u32 interface)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet *packet = data + PACKET;
	struct config *now = configured();
	struct change change = {};
	struct address address;
	u64 key[2];

	if (!now || (void *)(packet + 1) > end)
		return XDP_DROP;
	if (is_grant) {
		change.kind = GRANT;
		change.first = joined_grant(packet->first);
		change.token = packet->sum;
		change.to = packet->first;
	} else {
		change.kind = ACQUIRE;
		change.first = joined_acquire(packet->first);
		change.token = packet->token;
		change.to = packet->to;
	}
	if (!find(change.to, &address, key) || !address.reached || (interface && address.interface != interface))
		return XDP_DROP;
	return rewrite(ctx, &change, &address, key, now->port) ? XDP_PASS : XDP_DROP;
}

SEC("xdp/devmap") int grant_copy(struct xdp_md *ctx)
{
	return copy(ctx, 1, ctx->egress_ifindex);
}

SEC("xdp/devmap") int forward_copy(struct xdp_md *ctx)
{
	return copy(ctx, 0, ctx->egress_ifindex);
}

// The same, for tests: the kernel does not run programs of ports for them.
SEC("xdp") int grant_copy_alone(struct xdp_md *ctx)
{
	return copy(ctx, 1, 0);
}

SEC("xdp") int forward_copy_alone(struct xdp_md *ctx)
{
	return copy(ctx, 0, 0);
}

struct decision {
	u8 verdict, agent;
};

// The stages of the pipeline, over the registers of one lock. 0 if these are of a later epoch.
static __always_inline int process(struct group *group, u32 at, u8 kind, u64 first, u32 epoch, struct decision *out)
{
	struct decision decision = {};
	u32 bit = 1U << at, was_free, was_shared, barred, valid = 1, acquires = kind == ACQUIRE;
	u32 frees = kind == FREE, transfers = kind == GRANT, shared = (first & SHARED) != 0;
	u8 mid = first, inca = first >> 40, old;

	bpf_spin_lock(&group->lock);
	if (group->epoch > epoch) {
		bpf_spin_unlock(&group->lock);
		return 0;
	}
	if (group->epoch < epoch) {
		group->epoch = epoch;
		group->free = ~0U;
		group->shared = 0;
		group->bar = 0;
		__builtin_memset(group->inca, 0, sizeof(group->inca));
		__builtin_memset(group->mid, 0, sizeof(group->mid));
	}
	// Check.
	old = group->inca[at];
	if (acquires && shared)
		group->inca[at] = old + 1;
	if (frees || transfers) {
		if (!(first & HELD_SHARED) || old == inca)
			group->inca[at] = 0;
		else
			valid = 0;
	}
	// Free.
	was_free = group->free & bit;
	if (acquires)
		group->free &= ~bit;
	if (frees && valid)
		group->free |= bit;
	// R/W.
	was_shared = group->shared & bit;
	if ((acquires && was_free) || (transfers && valid)) {
		if (shared)
			group->shared |= bit;
		else
			group->shared &= ~bit;
	}
	barred = group->bar & bit;
	if (kind == BAR || (transfers && valid && first & KEEP_BAR))
		group->bar |= bit;
	else if ((frees || transfers) && valid)
		group->bar &= ~bit;
	// MID.
	decision.agent = group->mid[at];
	if ((acquires && was_free) || (transfers && valid))
		group->mid[at] = mid;
	if (frees && valid)
		group->mid[at] = 0;
	bpf_spin_unlock(&group->lock);
	// Destination.
	if (kind == RELEASE)
		decision.verdict = TO_AGENT;
	else if (!acquires)
		decision.verdict = valid ? DONE : REFUSED;
	else if (was_free)
		decision.verdict = GRANTED;
	else if (!shared || !was_shared)
		decision.verdict = SUSPENDED;
	else
		decision.verdict = barred ? BARRED : JOINED;
	*out = decision;
	return 1;
}

// Out where its receiver is.
static __always_inline int send(struct xdp_md *ctx, struct counts *counts, const struct change *change, u16 port)
{
	struct address address;
	u64 key[2];

	if (!find(change->to, &address, key) || !address.reached)
		return XDP_DROP;
	if (!rewrite(ctx, change, &address, key, port))
		return XDP_DROP;
	counts->sent++;
	return address.interface == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(address.interface, 0);
}

// Whether a machine's packet comes from where the machine is.
static __always_inline int is_from(const struct address *machine, const struct address *sender)
{
	return machine->reached && machine->ip == sender->ip && machine->port == sender->port;
}

static __always_inline int malformed(struct counts *counts)
{
	counts->malformed++;
	return XDP_DROP;
}

static __always_inline int forged(struct counts *counts)
{
	counts->forged++;
	return XDP_DROP;
}

SEC("xdp") int decide(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethernet *ethernet = data;
	struct ip *ip = data + sizeof(*ethernet);
	struct udp *udp = (void *)(ip + 1);
	struct packet *packet = data + PACKET;
	struct config *now = configured();
	struct change change = {};
	struct decision decision;
	struct address address, sender = {};
	struct lanes *numbers;
	struct counts *counts;
	struct group *group;
	struct peer *peer;
	struct stamp *stamp;
	struct sum sum = {};
	struct subnet origin = { .bits = 32 };
	u32 only = 0, mid, length, own_ip, seq, lane, last, epoch, is_new, stamps, at, waiters;
	u64 key[2], first, number, lid, token;
	u8 kind, to;

	// Is it for this decider? A frame whose headers do not hold together is the network stack's to complain of.
	if ((void *)(udp + 1) > end || !now)
		return XDP_PASS;
	if (ethernet->type != bpf_htons(0x0800) || ip->version_and_length != 0x45 || ip->protocol != 17)
		return XDP_PASS;
	if (ip->fragment & bpf_htons(0x3fff) || udp->to != now->port)
		return XDP_PASS;
	own_ip = ip->to;
	length = bpf_ntohs(udp->length);
	if (length < sizeof(*udp) || sizeof(*ip) + length > bpf_ntohs(ip->length) ||
	    (long)sizeof(*ethernet) + bpf_ntohs(ip->length) > end - data)
		return XDP_PASS;
	if (!bpf_map_lookup_elem(&own, &own_ip))
		return XDP_PASS;
	counts = bpf_map_lookup_elem(&counters, &only);
	if (!counts)
		return XDP_PASS;
	counts->received++;
	length -= sizeof(*udp);
	origin.ip = ip->from;
	if (now->restricted && !bpf_map_lookup_elem(&allowed, &origin))
		return forged(counts);

	// Is it a packet? As datagram::ends and datagram::decode have it.
	if ((void *)(packet + 1) > end || length < HEAD || packet->magic != 0x4c46 || packet->version != 1)
		return malformed(counts);
	waiters = packet->waiters;
	if (waiters > MAX_WAITERS || length != HEAD + 8 * waiters)
		return malformed(counts);
	mid = packet->from;
	sender.ip = ip->from;
	sender.own_ip = own_ip;
	sender.port = udp->from;
	sender.interface = ctx->ingress_ifindex;
	sender.reached = 1;
	__builtin_memcpy(sender.mac, ethernet->from, 6);
	__builtin_memcpy(sender.own_mac, ethernet->to, 6);
	if (!find(mid, &address, key))
		return forged(counts);
	sum.key[0] = key[0];
	sum.key[1] = key[1];
	if (!sum_up(ctx, &sum))
		return malformed(counts);
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	packet = data + PACKET;
	if ((void *)(packet + 1) > end)
		return malformed(counts);
	if (packet->sum != sum.value)
		return forged(counts);
	kind = packet->kind;
	to = packet->to;
	first = packet->first;
	number = packet->number;
	lid = packet->lid;
	lane = (number >> 8) & 0xffffff;
	seq = number >> 32;
	epoch = packet->epoch;
	change.kind = kind;
	change.first = first;
	change.token = packet->token;
	if (kind == HELLO) {
		if (lid | first | number | packet->token | epoch | packet->zero | waiters)
			return malformed(counts);
		peer = bpf_map_lookup_elem(&peers, &mid);
		if (!peer)
			return forged(counts);
		bpf_spin_lock(&peer->lock);
		// The first one counts: a copy of it from elsewhere would have the machine's packets sent there. And not if
		// the machine was told to leave while its checksum was looked at.
		if (peer->known && !peer->address.reached && peer->key[0] == key[0] && peer->key[1] == key[1])
			peer->address = sender;
		address = peer->address;
		bpf_spin_unlock(&peer->lock);
		if (!is_from(&address, &sender))
			return forged(counts);
		change.to = mid;
		return send(ctx, counts, &change, now->port);
	}
	if (kind < ACQUIRE || kind > ACK || !sum.sound || first & NO_FIRST || packet->zero || lid >= now->locks ||
	    !(first & 0xff) || !(number & 0xff) || lane >= now->lanes || !seq)
		return malformed(counts);
	if (!is_from(&address, &sender))
		return forged(counts);
	if (to) {
		// Machines say nothing to each other but that something has arrived.
		if (kind != ACK)
			return malformed(counts);
		counts->passed_on++;
		change.from = mid;
		change.to = to;
		return send(ctx, counts, &change, now->port);
	}
	if ((number & 0xff) != mid || kind == ACK)
		return malformed(counts);

	// The stages that make a packet count once.
	if (now->closed || epoch != now->epoch)
		return XDP_DROP;
	numbers = bpf_map_lookup_elem(&lanes, &mid);
	if (!numbers || lane >= MAX_LANES)
		return XDP_DROP;
	bpf_spin_lock(&numbers->lock);
	if (numbers->epoch > epoch) {
		bpf_spin_unlock(&numbers->lock);
		return XDP_DROP;
	}
	if (numbers->epoch < epoch) {
		numbers->epoch = epoch;
		__builtin_memset(numbers->seq, 0, sizeof(numbers->seq));
		__builtin_memset(numbers->verdict, 0, sizeof(numbers->verdict));
		__builtin_memset(numbers->agent, 0, sizeof(numbers->agent));
	}
	last = numbers->seq[lane];
	decision.verdict = numbers->verdict[lane];
	decision.agent = numbers->agent[lane];
	is_new = seq > last;
	if (is_new) {
		numbers->seq[lane] = seq;
		numbers->verdict[lane] = 0;
	}
	bpf_spin_unlock(&numbers->lock);
	if (!is_new && (seq < last || !decision.verdict))
		return XDP_DROP;
	stamps = 0;
	if (is_new) {
		if (kind == GRANT && !(first & AGENT)) {
			// Only forwarded.
			decision.verdict = DONE;
			decision.agent = 0;
		} else {
			at = lid / LOCKS_PER_GROUP;
			group = bpf_map_lookup_elem(&groups, &at);
			if (!group || !process(group, lid % LOCKS_PER_GROUP, kind, first, epoch, &decision))
				return XDP_DROP;
			stamps = decision.verdict == GRANTED || decision.verdict == JOINED ||
				 (kind == GRANT && decision.verdict == DONE);
		}
		bpf_spin_lock(&numbers->lock);
		if (numbers->epoch == epoch && numbers->seq[lane] == seq) {
			numbers->verdict[lane] = decision.verdict;
			numbers->agent[lane] = decision.agent;
		}
		bpf_spin_unlock(&numbers->lock);
	}
	stamp = bpf_map_lookup_elem(&stamps_map, &only);
	if (!stamp)
		return XDP_DROP;
	bpf_spin_lock(&stamp->lock);
	stamp->stamp += stamps;
	token = stamp->stamp << LOCAL_BITS;
	bpf_spin_unlock(&stamp->lock);

	// What comes of it.
	change.to = first;
	if (kind == ACQUIRE && decision.verdict == JOINED) {
		struct address agent;

		counts->grants++;
		if (find(change.to, &address, key) && address.reached) {
			if (decision.agent && find(decision.agent, &agent, key) && agent.reached) {
				data = (void *)(long)ctx->data;
				end = (void *)(long)ctx->data_end;
				packet = data + PACKET;
				if ((void *)(packet + 1) > end)
					return XDP_DROP;
				packet->to = decision.agent;
				packet->sum = token;
				counts->sent += 2;
				return bpf_redirect_map(&copies, 0, BPF_F_BROADCAST);
			}
			change.kind = GRANT;
			change.first = joined_grant(first);
			change.token = token;
		} else {
			change.first = joined_acquire(first);
			change.to = decision.agent;
		}
	} else if (kind == ACQUIRE && decision.verdict == GRANTED) {
		counts->grants++;
		change.kind = GRANT;
		change.first = (first & ~FLAGS) | AGENT | FRESH;
		change.token = token;
	} else if (kind == ACQUIRE) {
		change.first = (first & ~(FLAGS & ~TRIES)) | (decision.verdict == BARRED ? COUNTED : 0);
		change.to = decision.agent;
	} else if (kind == RELEASE) {
		change.to = decision.agent;
	} else if (kind == GRANT && decision.verdict == DONE) {
		counts->grants++;
		if (first & AGENT)
			change.token = token;
	} else {
		// FREE and BAR come back as their own acknowledgement; so does what is refused.
		counts->grants += kind == GRANT;
		change.first = (first & ~WAS_REFUSED) | ECHO | (decision.verdict == REFUSED ? WAS_REFUSED : 0);
		change.to = mid;
		change.bare = 1;
	}
	return send(ctx, counts, &change, now->port);
}

char made_of[] SEC("source") = SOURCE;
char terms[] SEC("license") = "MIT OR Apache-2.0";
