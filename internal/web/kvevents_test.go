package web

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lmwarden/internal/kvevents"
)

// heardOfTwo is what KV events say of the box's first ranks; nobody listens to the
// others.
func heardOfTwo(url string, rank int) (kvevents.View, bool) {
	switch {
	case url != "http://127.0.0.1:8000" || rank > 1:
		return kvevents.View{}, false
	case rank == 1:
		return kvevents.View{Problem: "connect to KV events: connection refused", CachedTokens: -1, Sequence: -1, Age: -1}, true
	}
	return kvevents.View{
		Connected: true, Complete: true, CachedTokens: 30_400, Blocks: 1900, StoredPerSecond: 812.5, RemovedPerSecond: 16,
		Sequence: 7, Gaps: 2, Age: 2500 * time.Millisecond,
	}, true
}

func heard(o *Options) { o.KVEvents = heardOfTwo }

func TestKVEventsInTheAPI(t *testing.T) {
	p := box()
	p.view.Replicas[0].CachedTokens = 29_000
	w := call(newHandler(t, nil, []Pool{p}, heard), "GET", "/api/models/qwen3-4b-dp4", "")
	var got struct {
		Replicas []struct {
			Estimate int64 `json:"cached_tokens_estimate"`
			KVEvents any   `json:"kv_events"`
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []any{
		map[string]any{
			"connected": true, "complete": true, "cached_tokens": 30_400., "blocks": 1900., "stored_tokens_per_s": 812.5, "removed_tokens_per_s": 16.,
			"sequence": 7., "gaps": 2., "lost_batches": 0., "age_ms": 2500., "problem": nil,
		},
		map[string]any{
			"connected": false, "complete": false, "cached_tokens": nil, "blocks": nil, "stored_tokens_per_s": 0., "removed_tokens_per_s": 0.,
			"sequence": nil, "gaps": 0., "lost_batches": 0., "age_ms": nil, "problem": "connect to KV events: connection refused",
		},
		nil, nil,
	}
	for i, r := range got.Replicas {
		if d := cmp.Diff(want[i], r.KVEvents); d != "" {
			t.Errorf("replica %d: %s", i, d)
		}
	}
	if len(got.Replicas) != 4 || got.Replicas[0].Estimate != 29_000 {
		t.Errorf("%+v", got)
	}
}

func TestThePageComparesWhatIsCachedWithTheEstimate(t *testing.T) {
	p := box()
	p.view.Replicas[0].CachedTokens = 29_000
	page := call(newHandler(t, nil, []Pool{p}, heard), "GET", "/models/qwen3-4b-dp4", "").Body.String()
	_, first, _ := strings.Cut(page, `<tr data-cached="0">`)
	first, rest, _ := strings.Cut(first, "</tr>")
	for _, want := range []string{">30.4k<", ">29k<", "76.0%", ">813<", ">16<", "last event 2 s ago"} {
		if !strings.Contains(first, want) {
			t.Errorf("the row of replica 0 has no %s: %s", want, first)
		}
	}
	if !strings.Contains(rest, "connection refused") || strings.Contains(rest, `data-cached="2"`) {
		t.Error("the rows behind it are others")
	}
	if page := call(newHandler(t, nil, []Pool{p}), "GET", "/models/qwen3-4b-dp4", "").Body.String(); strings.Contains(page, "Prefix cache<") {
		t.Error("a table without anybody who listens")
	}
}

func TestNotesOnWhatIsHeard(t *testing.T) {
	for want, v := range map[string]kvevents.View{
		"connecting":                    {Sequence: -1},
		"connection refused":            {Sequence: -1, Problem: "connection refused"},
		"no event yet":                  {Connected: true, Sequence: -1},
		"last event 1 min ago":          {Connected: true, Complete: true, Age: time.Minute},
		"1 batch of events was lost":    {Connected: true, Lost: 1},
		"2 batches of events were lost": {Connected: true, Lost: 2},
		"older blocks are not in it":    {Connected: true},
	} {
		if got := cachedNote(kvEventsOf(v)); !strings.HasPrefix(got, want) {
			t.Errorf("%+v: %q, want %q", v, got, want)
		}
	}
}
