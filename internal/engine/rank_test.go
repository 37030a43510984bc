package engine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAtLeast(t *testing.T) {
	for version, want := range map[string]bool{
		"0.33.0": true, "0.33.0rc1+cpu": true, "0.33": true, "v0.33.1": true, "0.34.0.dev20261101": true, "1": true, "1.0.0": true,
		"0.32.0": false, "0.32.9": false, "0.4": false, "": false, "dev": false, "v": false, "0.x": false, "99999999999999999999.0": false,
	} {
		if got := atLeast(version, 0, 33, 0); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestHonoursRank(t *testing.T) {
	tests := []struct {
		version, path string
		want          bool
	}{
		{"0.32.0", "/v1/chat/completions", true},
		{"0.32.0", "/v1/completions", true},
		{"0.32.0", "/v1/messages", true},
		{"0.32.0", "/v1/responses", false},
		{"0.33.0", "/v1/responses", true},
		{"0.33.0", "/v1/embeddings", false},
		{"0.33.0", "/v1/audio/transcriptions", false},
		{"0.33.0", "/v1/messages/count_tokens", false},
		{"0.10.2", "/v1/chat/completions", false},
		{"", "/v1/chat/completions", true},
		{"", "/v1/responses", false},
		{"main", "/v1/responses", false},
	}
	for _, test := range tests {
		if got := HonoursRank(Info{Version: test.version}, test.path); got != test.want {
			t.Errorf("%s on %q: %v", test.path, test.version, got)
		}
	}
	if diff := cmp.Diff([]string{"/v1/responses"}, BlindPaths(Info{Version: "0.32.0"})); diff != "" {
		t.Error(diff)
	}
	if got := BlindPaths(Info{Version: "0.33.0"}); got != nil {
		t.Error(got)
	}
}

// learning drives a RankLearner with a clock.
type learning struct {
	RankLearner
	now time.Time
}

func (l *learning) scrape(prompt ...float64) string {
	l.now = l.now.Add(time.Second)
	samples := make([]Sample, len(prompt))
	for i, p := range prompt {
		samples[i].PromptTokens = p
	}
	blind, _ := l.Scrape(l.now, samples)
	return blind
}

func (l *learning) request(path string, rank int, answered bool) {
	l.Begin(path, rank)
	l.End(l.now, answered)
}

func TestRankLearner(t *testing.T) {
	tests := []struct {
		name string
		run  func(*learning) string
		want string
	}{
		{"another rank answered", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 0, true)
			return l.scrape(10, 15)
		}, "/v1/x"},
		{"the named rank answered", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 1, true)
			return l.scrape(10, 15)
		}, ""},
		{"other clients were there too", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 1, true)
			return l.scrape(15, 15)
		}, ""},
		{"nothing rose", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 1, true)
			return l.scrape(10, 10)
		}, ""},
		{"it was not answered", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 0, false)
			return l.scrape(10, 15)
		}, ""},
		{"it named no rank", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", -1, true)
			return l.scrape(10, 15)
		}, ""},
		{"it named a rank that is not there", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/x", 2, true)
			return l.scrape(10, 15)
		}, ""},
		{"it was not alone", func(l *learning) string {
			l.scrape(10, 10)
			l.request("/v1/y", 1, true)
			l.request("/v1/x", 0, true)
			return l.scrape(10, 15)
		}, ""},
		{"another was open before", func(l *learning) string {
			l.scrape(10, 10)
			l.Begin("/v1/y", 1)
			l.scrape(10, 10)
			l.End(l.now, true)
			l.request("/v1/x", 0, true)
			return l.scrape(10, 15)
		}, ""},
		{"there was no scrape before", func(l *learning) string {
			l.request("/v1/x", 0, true)
			return l.scrape(10, 15)
		}, ""},
		{"it lasted over several scrapes", func(l *learning) string {
			l.scrape(10, 10)
			l.Begin("/v1/x", 0)
			l.scrape(10, 10)
			l.scrape(10, 15)
			l.End(l.now, true)
			return l.scrape(10, 15)
		}, "/v1/x"},
		{"the scrape began before it ended", func(l *learning) string {
			l.scrape(10, 10)
			l.Begin("/v1/x", 0)
			l.End(l.now.Add(time.Second), true)
			return l.scrape(10, 15)
		}, ""},
		{"it is judged by the next scrape then", func(l *learning) string {
			l.scrape(10, 10)
			l.Begin("/v1/x", 0)
			l.End(l.now.Add(time.Second), true)
			l.scrape(10, 10)
			return l.scrape(10, 15)
		}, "/v1/x"},
		{"the engine restarted meanwhile", func(l *learning) string {
			l.scrape(10, 10)
			l.Begin("/v1/x", 0)
			l.Forget()
			l.End(l.now, true)
			return l.scrape(0, 5)
		}, ""},
		{"the engine restarted before", func(l *learning) string {
			l.scrape(10, 10)
			l.Forget()
			l.scrape(0, 0)
			l.request("/v1/x", 0, true)
			return l.scrape(0, 5)
		}, "/v1/x"},
		{"the ranks changed", func(l *learning) string {
			l.scrape(10, 10, 10)
			l.request("/v1/x", 0, true)
			return l.scrape(10, 15)
		}, ""},
	}
	for _, test := range tests {
		l := &learning{now: time.Unix(1000, 0)}
		if got := test.run(l); got != test.want {
			t.Errorf("%s: blind %q, want %q", test.name, got, test.want)
		}
	}
}
