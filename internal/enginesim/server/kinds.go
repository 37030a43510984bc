package server

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// kind is a way to fail. It has either steps or an answer.
type kind struct {
	name     string
	keys     string // that it knows beside at, separated by spaces
	help     string
	defaults failure
	cuts     bool // all connections, that of the request for it included

	// steps are what happens to the process or a rank of it, and when.
	steps func(*process, failure) []step

	// answer replaces how a request is answered; serve is how it would be.
	answer func(s *Server, f failure, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc)
}

// kinds are all ways to fail.
func kinds() []kind {
	const requests = "for count share path"
	return []kind{
		{
			name: "die", keys: "rank answers shell down ranks", steps: dieSteps,
			help: "The engine of rank= is killed (kill -9). The other ranks abort what they have, what is on the rank hangs for 5.5 s, " +
				"then everything fails and the server goes. answers=TIME lets the other ranks answer new requests that long, " +
				"shell=true keeps the server up without an engine (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH).",
		},
		{
			name: "stop", keys: "timeout down ranks", steps: stopSteps,
			help: "SIGTERM, with --shutdown-timeout timeout= (0s). Without a timeout everything is aborted at once; with one it goes on, " +
				"and what is not done in time hangs until its client leaves.",
		},
		{
			name: "restart", keys: "down ranks", steps: restartSteps, cuts: true, defaults: failure{down: 10 * time.Second},
			help: "The whole server is killed, with all connections, and comes back (10s later).",
		},
		{
			name: "freeze", keys: "rank for", steps: freezeSteps, defaults: failure{lasts: 20 * time.Second},
			help: "The engine of rank= hangs (SIGSTOP) for= a time (20s) and goes on.",
		},
		{
			name: "slow", keys: "rank factor for", steps: slowSteps, defaults: failure{factor: 2},
			help: "The steps of rank= take factor= times as long (2), for= a time or to the end; factor=1 ends it.",
		},
		{
			name: "reset", keys: requests + " reused", answer: resetConnection, defaults: failure{share: 1},
			help: "The connection is reset before an answer; reused=true: only one that served a request before.",
		},
		{
			name: "cut", keys: requests + " after how", answer: cutAnswer,
			defaults: failure{share: 1, after: 3, how: cutByClose},
			help: "The answer ends after= so many events (3) of a stream, or in the middle of a body. how=" + strings.Join(cutWays(), "|") +
				": the connection is closed, reset, or the stream ends as if it were complete.",
		},
		{
			name: "slow-headers", keys: requests + " delay", answer: slowHeaders,
			defaults: failure{share: 1, delay: 30 * time.Second},
			help:     "The headers come delay= (30s) late.",
		},
		{
			name: "busy", keys: "for count share retry-after", answer: answerBusy, defaults: failure{share: 1},
			help: "503 as of a full queue; retry-after=TIME adds the header that vLLM does not send.",
		},
		{
			name: "metrics", keys: "for count share mode", answer: breakPage,
			defaults: failure{share: 1, path: "/metrics", mode: pageError},
			help:     "/metrics is broken: mode=" + strings.Join(pageModes(), "|") + ".",
		},
	}
}

// FailureHelp describes for a person how failures are asked for.
func FailureHelp() string {
	var b strings.Builder
	b.WriteString("A failure is KIND[@TIME][,KEY=VALUE...], for example die@30s,rank=1,down=20s. TIME is when it begins, after the start. " +
		"Times have units and run with the engine's speed. The kinds, with their keys:\n")
	for _, k := range kinds() {
		fmt.Fprintf(&b, "\n%s (%s): %s\n", k.name, strings.Join(strings.Fields(k.keys), ", "), k.help)
	}
	b.WriteString("\nKeys of several kinds: for is how long it lasts (default: to the end), count the most requests that it hits, share the part of " +
		"the requests that it hits (chosen by the seed), path the beginning of the paths that it hits (default: the routes that generate), " +
		"down how long a server that ended stays away (default: for ever), ranks how many it has when it is back.\n")
	return b.String()
}
