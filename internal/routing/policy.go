package routing

import (
	"fmt"
	"slices"
	"strings"
)

// policy chooses the replica of one request. The core does everything else: it
// knows which replicas may be chosen, counts, binds, and names the reason. A
// policy keeps no counts of its own; what it compares is in the Core.
//
// To add one, write its file (least_inflight.go is the shortest) and its line in
// policies.
type policy interface {
	choose(c *Core, q *query) choice
}

// policies lists every policy in the order in which pages show them.
func policies() []namedPolicy {
	return []namedPolicy{
		{"off", off{}},
		{"round-robin", roundRobin{}},
		{"least-inflight", leastInFlight{}},
		{"session-hash", sessionHash{}},
		{"affinity", affinity{}},
		{"patience", patience{}},
	}
}

type namedPolicy struct {
	name string
	policy
}

// Policies lists the policy names in the order in which pages show them.
func Policies() []string {
	var names []string
	for _, p := range policies() {
		names = append(names, p.name)
	}
	return names
}

func policyByName(name string) (policy, error) {
	all := policies()
	i := slices.IndexFunc(all, func(p namedPolicy) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown policy %q: the policies are %s", name, strings.Join(Policies(), ", "))
	}
	return all[i].policy, nil
}

// query is what a policy is asked.
type query struct {
	key Key // zero for a request that makes no conversation
	// home, extends and parent are the homes of the conversation, of the one it
	// continues and of the one that started it; None where there is none.
	home, extends, parent int
	lastSpill             int // where the conversation spilled to last, None when it never did
	lastServer            int // where an engine's balancer served it last, None when none did
	// crowds is set when the conversation alone has as much in flight as makes a
	// home full where it is not known what fits: others should not lie idle then.
	crowds bool
	tried  []int
	// among are the replicas that may be chosen, at least one, in index order,
	// and all in state tier: a policy sees a worse state only when there is
	// nothing better.
	among []int
	tier  State
}

// choice is a policy's answer.
type choice struct {
	replica, server int
	// toEngine leaves the rank to the engine of server.
	toEngine bool
	// spill keeps the home of a conversation that is sent elsewhere; otherwise
	// the home moves. why explains either.
	spill bool
	why   Why
	// compared is set when the candidates' numbers decided.
	compared bool
}

// fate is what becomes of a conversation at its home.
type fate uint8

const (
	stays  fate = iota // the home may serve it
	spills             // the home may not serve this request, but keeps the conversation
	leaves             // the home has lost it
)

// fateAt tells what becomes of a conversation that has a home, and why it is not
// to be served there.
//
// A stuck home keeps its own conversations (it recovers by itself, and their
// cache is there) unless an attempt of this very request failed in it. A home
// not heard from keeps them too, so a gateway that starts does not scatter them.
// A draining home gives them up only for a ready replica. One that is kept out
// for a while is likely to be back with their cache.
func (c *Core) fateAt(q *query) (fate, Why) {
	home := c.replicas[q.home]
	failed := slices.Contains(q.tried, home.server)
	switch {
	case failed && home.state == Stuck:
		return leaves, HomeStuck
	case failed && (home.state == Down || home.state == Draining):
		return leaves, Failed
	case failed:
		return spills, Failed
	case home.state == Down:
		return leaves, HomeDown
	case home.state == Draining && q.tier == Ready:
		return leaves, HomeDraining
	case home.state == Ejected && q.tier != Ejected:
		return spills, HomeDown
	}
	return stays, ""
}

// to chooses a replica.
func (c *Core) to(replica int) choice {
	return choice{replica: replica, server: c.replicas[replica].server}
}
