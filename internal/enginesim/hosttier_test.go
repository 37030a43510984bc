package enginesim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// withHost is smallParams with a tier of so many blocks in the host, of which a
// token takes 10 us to load.
func withHost(usableBlocks, hostBlocks int) Params {
	p := smallParams(usableBlocks)
	p.KVBytesPerToken, p.HostLinkGBPerS = 1<<20, (1<<20)/10e3
	p.HostKVGiB = float64(hostBlocks*p.BlockTokens) / 1024
	return p
}

func TestHostTierForgetsWhatWasUsedLongestAgo(t *testing.T) {
	tier := newHostTier(withHost(4, 3))
	for _, h := range []blockHash{1, 2, 3, 1, 4} {
		tier.use(h)
	}
	var have []blockHash
	for h := range blockHash(6) {
		if tier.has(h) {
			have = append(have, h)
		}
	}
	if diff := cmp.Diff([]blockHash{1, 3, 4}, have); diff != "" {
		t.Errorf("it has: want -, got +:\n%s", diff)
	}
	tier.reset()
	tier.use(9)
	if tier.has(1) || !tier.has(9) {
		t.Error("after a reset it has something else than what came since")
	}
}

func TestPromptThatLeftTheCacheIsLoadedFromTheHost(t *testing.T) {
	for _, tc := range []struct {
		hostBlocks, cached, fromHost int
		took                         time.Duration
	}{
		{0, 0, 0, 13 * time.Millisecond},
		{8, 12, 12, time.Millisecond + 12*10*time.Microsecond},
		// The second prompt's blocks came later, and the end of the first one went first.
		{4, 4, 4, 9*time.Millisecond + 4*10*time.Microsecond},
	} {
		r := NewRank(withHost(4, tc.hostBlocks))
		// Four blocks each, all that there are.
		for id := range uint64(2) {
			add(t, r, seq(id+1, 13, 1))
			steps(r, 10)
		}
		again := seq(1, 13, 1)
		again.ID = 3
		add(t, r, again)
		took, _ := r.Begin()
		emits := r.End()
		if len(emits) != 1 || emits[0].Cached != tc.cached || took != tc.took {
			t.Errorf("%d blocks in the host: %v, %+v; want %v, %d cached", tc.hostBlocks, took, emits, tc.took, tc.cached)
		}
		if s := r.Stats(); s.HostHits != int64(tc.fromHost) || s.PrefixHits != 0 || s.PrefixQueries != 39 || s.CachedTokens != int64(tc.cached) {
			t.Errorf("%d blocks in the host: %+v", tc.hostBlocks, s)
		}
		if !r.Reset() {
			t.Fatal("an idle rank is not reset")
		}
		again.ID = 4
		add(t, r, again)
		r.Begin()
		if emits := r.End(); emits[0].Cached != 0 {
			t.Errorf("%d blocks in the host: %d tokens cached after a reset", tc.hostBlocks, emits[0].Cached)
		}
	}
}

// What the cache has is not loaded, and keeps its place in the host.
func TestHostGoesOnWhereTheCacheEnds(t *testing.T) {
	r := NewRank(withHost(6, 20))
	add(t, r, seq(1, 17, 1)) // five blocks, four of them full
	steps(r, 10)
	add(t, r, seq(2, 12, 1)) // three of the six: the end of the first prompt goes
	steps(r, 10)
	again := seq(1, 17, 1)
	again.ID = 3
	add(t, r, again)
	if took, _ := r.Begin(); took != time.Millisecond+4*10*time.Microsecond {
		t.Errorf("the step takes %v, want one token's time and that of a block loaded", took)
	}
	r.End()
	if s := r.Stats(); s.PrefixHits != 12 || s.HostHits != 4 {
		t.Errorf("%d tokens from the cache and %d from the host, want 12 and 4", s.PrefixHits, s.HostHits)
	}
}
