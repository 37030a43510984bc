package server

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// replay sends every complete request of the recordings, in order, to one server and compares
// the answers. The titles in warm begin those whose request the recorded server had seen before;
// but are titles that do not apply.
func replay(t *testing.T, o Options, files []string, warm, but []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, o)
		for _, file := range files {
			for _, e := range readRecording(t, file) {
				if e.truncated || slices.Contains(but, e.title) {
					continue
				}
				if slices.Contains(warm, e.title) {
					n.send(t, e.request)
				}
				if diff := cmp.Diff(e.want(t), n.send(t, e.request)); diff != "" {
					t.Errorf("%s: %s (-recorded +simulated)\n%s", file, e.title, diff)
				}
			}
		}
	})
}

func TestDialectsAsRecorded(t *testing.T) {
	t.Parallel()
	// One after the other on one server, as they were recorded: the cache counts depend on it.
	replay(t, recorded(t), []string{"chat.txt", "completions.txt", "responses.txt", "messages.txt", "tokenize-embeddings.txt", "rank-header.txt"}, nil, nil)
}

func TestErrorsAsRecorded(t *testing.T) {
	t.Parallel()
	replay(t, recorded(t), []string{"errors.txt", "endpoints.txt"}, nil, nil)
}

func TestUsageWithoutDetailsAsRecorded(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.OmitPromptTokensDetails = true
	replay(t, o, []string{"usage-without-flag.txt"}, nil, nil)
}

func TestSingleRankAsRecorded(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.Replicas = 1
	replay(t, o, []string{"single-rank.txt"}, nil, nil)
}

func TestKeysAsRecorded(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.APIKey = "sk-two"
	replay(t, o, []string{"auth.txt"}, nil, []string{
		"/reset_prefix_cache without dev mode", // the simulation is always in dev mode
	})
}

func TestVersion33AsRecorded(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	o.Version = "0.33.0"
	replay(t, o, []string{"vllm-0.33.0.txt"}, []string{"chat usage, warm", "completions, warm"}, nil)
}
