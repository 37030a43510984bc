package server

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// simulationPrefix begins the routes that no vLLM has: those of the simulation itself.
//
//	GET  /sim/state  a State
//	POST /sim/fail   {"kind": "die", "at": "5s", "rank": 1, ...}, the keys of FailureHelp
//
// They are as dead as the server when it is; Server.State and Server.Fail are not.
const simulationPrefix = "/sim/"

// State is what the simulation knows about itself, for a test that compares it with what clients and
// gateway have seen.
type State struct {
	// Ranks are the requests for answers by the rank that took them, from all lives of the server.
	Ranks []Counts `json:"ranks"`
	// Unrouted are those that no rank has taken.
	Unrouted Counts `json:"unrouted"`
	// CachedTokens are the tokens of the full blocks in each rank's prefix cache.
	CachedTokens []int `json:"cached_tokens"`
	// Failures are those of requests that are on, and how many they have hit.
	Failures []FailureState `json:"failures"`
}

// FailureState is a failure of requests in the words in which it was asked for.
type FailureState struct {
	Failure string `json:"failure"`
	Hits    int    `json:"hits"`
}

// State returns the counts, all of one moment.
func (s *Server) State() State {
	st := State{Failures: s.ambushes.state()}
	st.Unrouted, st.Ranks = s.tally.counts()
	e := s.process().engine
	st.CachedTokens = e.cachedTokens()
	for len(st.Ranks) < e.ranks() {
		st.Ranks = append(st.Ranks, Counts{})
	}
	return st
}

func (s *Server) simulation(w http.ResponseWriter, r *http.Request) {
	reply := func(status int, v any) {
		body, _ := json.Marshal(v) // fails for no value given below
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body) // fails only when the client is gone
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /sim/state":
		reply(http.StatusOK, s.State())
	case "POST /sim/fail":
		f, err := readFailure(r.Body)
		if err == nil {
			err = f.check(s.process().engine.ranks())
		}
		accept := func() { reply(http.StatusAccepted, map[string]string{"failure": f.spec}) }
		switch {
		case err != nil:
			reply(http.StatusBadRequest, map[string]string{"error": err.Error()})
		case f.kind.cuts:
			accept()
			_ = http.NewResponseController(w).Flush() // as above
			s.begin(f)
		default:
			s.begin(f) // true: what answers runs
			accept()
		}
	default:
		reply(http.StatusNotFound, map[string]string{"error": "the simulation has GET /sim/state and POST /sim/fail"})
	}
}

// readFailure reads a failure as a JSON object. Its values may be strings, numbers and booleans.
func readFailure(body io.Reader) (failure, error) {
	var fields map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(body, 1<<16)).Decode(&fields); err != nil {
		return failure{}, fmt.Errorf(`the body is no JSON object like {"kind": "die", "rank": 1}: %w`, err)
	}
	value := func(raw json.RawMessage) string {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return text
		}
		return string(raw)
	}
	name := value(fields["kind"])
	delete(fields, "kind")
	spec := name
	var pairs []pair
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		v := value(fields[key])
		pairs = append(pairs, pair{key, v})
		spec += "," + key + "=" + v
	}
	return newFailure(strings.TrimSpace(spec), name, pairs)
}
