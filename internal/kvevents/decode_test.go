package kvevents

import (
	"encoding/hex"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

var compareEvents = cmp.AllowUnexported(event{})

// recorded is what a real engine published.
func recorded(t testing.TB) (payloads [][]byte) {
	t.Helper()
	text, err := os.ReadFile("testdata/vllm-0.32.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		payload, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		payloads = append(payloads, payload)
	}
	return payloads
}

func TestRecordedBatches(t *testing.T) {
	one := func(hashes ...uint64) event { return event{kind: stored, hashes: hashes, tokens: 32} }
	first := one(8070416387117997120, 15819710483425471555)
	want := [][]event{
		{{kind: cleared}, first},
		{one(1546097861888862062)},
		{one(3463877265198761510)},
		{{kind: cleared}, first},
		{one(11273310664377097671, 5861565277841544063)},
		{first},
	}
	for i, payload := range recorded(t) {
		got, err := decode(payload)
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want[i], got, compareEvents); d != "" {
			t.Errorf("batch %d: %s", i, d)
		}
	}
}

type list = []any

func TestEveryLayoutIsRead(t *testing.T) {
	digest := append(make([]byte, 24), 0xff, 0, 0, 0, 0, 0, 0, 7)
	want := []event{
		{kind: stored, hashes: []uint64{9100, 1<<64 - 1}, tokens: 16},
		{kind: stored, hashes: []uint64{3}, tokens: 16, elsewhere: true},
		{kind: removed, hashes: []uint64{9100}},
		{kind: cleared},
	}
	arrays := list{ // up to 0.23, without what is left at its default at the end
		list{"BlockStored", []uint64{9100, 1<<64 - 1}, 8800, make([]int, 32), 16, nil, "GPU", nil, list{nil, nil}, 0, "full_attention", nil, "more"},
		list{"BlockStored", []uint64{3}, nil, make([]int, 16), 16, nil, "CPU"},
		list{"BlockRemoved", []uint64{9100}},
		list{"AllBlocksCleared"},
		list{"SomethingNew", map[string]any{"a": list{1, "b"}}},
	}
	maps := list{ // since 0.24
		named{"type": "BlockStored", "block_hashes": []uint64{9100, 1<<64 - 1}, "block_size": 16, "token_ids": make([]int, 32), "ownership": named{"x": list{list{}}}},
		named{"type": "BlockStored", "block_hashes": []uint64{3}, "block_size": 16, "medium": "CPU"},
		named{"type": "BlockRemoved", "block_hashes": []uint64{9100}, "medium": "GPU", "group_idx": 0},
		named{"type": "AllBlocksCleared"},
		named{"type": "SomethingNew", "block_hashes": nil},
	}
	for name, c := range map[string]struct {
		batch any
		want  []event
	}{
		"arrays":                {list{1785000000.25, arrays, 1}, want},
		"maps in an array":      {list{1785000000.25, maps, 1}, want},
		"maps in a map":         {named{"ts": 1785000000.25, "events": maps, "data_parallel_rank": 1}, want},
		"without a rank":        {list{1785000000.25, list{list{"AllBlocksCleared"}}}, []event{{kind: cleared}}},
		"digests":               {list{1.0, list{list{"BlockRemoved", list{digest, []byte{5}}}}}, []event{{kind: removed, hashes: []uint64{0xff00000000000007, 5}}}},
		"no events":             {list{1.0, list{}}, nil},
		"no events, by nothing": {list{1.0, nil}, nil},
	} {
		payload, err := msgpack.Marshal(c.batch)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(payload)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(c.want, got, compareEvents); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestABatchThatIsNoneIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		batch any
		says  string
	}{
		"a number":           {7, "an array or a map"},
		"too short":          {list{1.0}, "no events"},
		"another map":        {named{"ts": 1.0}, "no events"},
		"events are no list": {list{1.0, "x"}, "read a batch"},
		"no block size":      {list{1.0, list{list{"BlockStored", []uint64{1}}}}, "block_size"},
		"a silly block size": {list{1.0, list{named{"type": "BlockStored", "block_hashes": []uint64{1}, "block_size": 1 << 40}}}, "block_size"},
	} {
		payload, err := msgpack.Marshal(c.batch)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decode(payload); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// Deep nesting costs no stack, a length that is announced no memory.
	defer debug.SetMaxStack(debug.SetMaxStack(1 << 20))
	deep := "\x92\x01" + strings.Repeat("\x91", 1<<17)
	for _, payload := range []string{"", deep, "\x93" + deep, "\x92\x01\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff"} {
		if _, err := decode([]byte(payload)); err == nil {
			t.Errorf("%.10q… is read", payload)
		}
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	c := cache{most: 3}
	now := time.Unix(1785000000, 0)
	all := []uint64{1, 2, 3, 4, 5, 1}
	c.apply([]event{{kind: stored, hashes: all, tokens: 16}}, now)
	if len(c.blocks) != 3 || c.tokens != 48 || !c.incomplete {
		t.Errorf("%d blocks, %d tokens, incomplete %v", len(c.blocks), c.tokens, c.incomplete)
	}
	c.apply([]event{{kind: removed, hashes: all}}, now)
	if len(c.blocks) != 0 || c.tokens != 0 {
		t.Errorf("%d blocks, %d tokens are left", len(c.blocks), c.tokens)
	}
}

func FuzzBatch(f *testing.F) {
	for _, payload := range recorded(f) {
		f.Add(payload)
	}
	f.Add([]byte("\x92\x01\x91\x93\xacBlockRemoved\x92\xc4\x02ab\x05\xc0"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		events, err := decode(payload)
		if err != nil {
			return
		}
		c := cache{most: 1000}
		now := time.Unix(1785000000, 0)
		c.apply(events, now)
		sum := int64(0)
		for _, b := range c.blocks {
			sum += int64(b.tokens)
			if b.copies < 1 || b.tokens < 1 {
				t.Errorf("a block of %d tokens in %d copies", b.tokens, b.copies)
			}
		}
		if sum != c.tokens {
			t.Errorf("%d tokens in blocks, %d in the sum", sum, c.tokens)
		}
	})
}

// A step that stores 512 blocks of 16 tokens.
func BenchmarkBatch(b *testing.B) {
	hashes := make([]uint64, 512)
	for i := range hashes {
		hashes[i] = uint64(i) << 40
	}
	event := storedEvent(hashes...)
	payload, err := msgpack.Marshal(list{1785000000.25, list{event}, 0})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(payload)))
	c := cache{most: maxBlocks}
	for b.Loop() {
		events, err := decode(payload)
		if err != nil {
			b.Fatal(err)
		}
		c.apply(events, time.Unix(1785000000, 0))
	}
}
