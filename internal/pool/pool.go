// Package pool holds the replicas of each model at run time: their state, their
// load and the leases on them. It drives the routing core in real time: it
// serialises the calls, carries out the actions, and turns what engines report
// into what the core observes. It reads no request and writes no answer.
package pool
