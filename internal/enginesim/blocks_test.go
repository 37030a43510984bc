package enginesim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// freeList returns the free blocks from head to tail.
func (p *blockPool) freeList() []blockID {
	var ids []blockID
	for id := p.blocks[nullBlock].next; id != nullBlock; id = p.blocks[id].next {
		ids = append(ids, id)
	}
	return ids
}

func TestBlockPoolReusesTheEndOfAPromptFirst(t *testing.T) {
	p := newBlockPool(7)
	a := []blockID{p.take(), p.take(), p.take()}
	if diff := cmp.Diff([]blockID{1, 2, 3}, a); diff != "" {
		t.Fatalf("a new pool hands out blocks in their order: want -, got +:\n%s", diff)
	}
	p.register(a[0], 10)
	p.register(a[1], 11)
	p.release(a) // its last block is not full
	if diff := cmp.Diff([]blockID{3, 4, 5, 6, 2, 1}, p.freeList()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}

	p.touch(2) // a hit takes a block from the middle of the list ...
	if diff := cmp.Diff([]blockID{3, 4, 5, 6, 1}, p.freeList()); diff != "" {
		t.Errorf("after a hit: want -, got +:\n%s", diff)
	}
	p.release([]blockID{2}) // ... and to its tail when it is over
	if diff := cmp.Diff([]blockID{3, 4, 5, 6, 1, 2}, p.freeList()); diff != "" {
		t.Errorf("after the release: want -, got +:\n%s", diff)
	}

	for range 5 {
		p.take()
	}
	if _, ok := p.find(10); ok {
		t.Error("block 1 was taken, but its content is still found")
	}
	if id, ok := p.find(11); !ok || id != 2 {
		t.Errorf("find(11) = %d, %v, want block 2, which is still free", id, ok)
	}
}

func TestBlockPoolKeepsASharedBlock(t *testing.T) {
	p := newBlockPool(4)
	id := p.take()
	p.register(id, 10)
	p.touch(id)
	p.release([]blockID{id})
	if p.free != 2 || p.unreferenced(id) {
		t.Error("a block that another sequence uses was freed")
	}
	if p.reset() {
		t.Error("the cache was emptied while a block is in use")
	}
	p.release([]blockID{id})
	if !p.reset() {
		t.Error("an unused cache cannot be emptied")
	}
	if _, ok := p.find(10); ok {
		t.Error("the emptied cache still finds a block")
	}
}

func TestBlockPoolFindsTheFirstOfEqualBlocks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		forget []blockID
		want   []blockID // found after each
	}{
		{"first to last", []blockID{1, 2, 3}, []blockID{2, 3, nullBlock}},
		{"last to first", []blockID{3, 2, 1}, []blockID{1, 1, nullBlock}},
		{"from the middle", []blockID{2, 1, 3}, []blockID{1, 3, nullBlock}},
	} {
		p := newBlockPool(4)
		for range 3 {
			p.register(p.take(), 10)
		}
		if id, _ := p.find(10); id != 1 {
			t.Errorf("%s: find returns block %d, want the first", tc.name, id)
		}
		var got []blockID
		for _, id := range tc.forget {
			p.forget(id)
			found, _ := p.find(10)
			got = append(got, found)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", tc.name, diff)
		}
	}
}

func TestBlockHashCoversParentAndTokens(t *testing.T) {
	hash := func(parent blockHash, tokens ...Token) blockHash {
		return hashBlock(parent, tokens)
	}
	a := hash(rootHash(""), 1, 2)
	for name, b := range map[string]blockHash{
		"other tokens": hash(rootHash(""), 1, 3),
		"other order":  hash(rootHash(""), 2, 1),
		"other parent": hash(a, 1, 2),
		"a salt":       hash(rootHash("s"), 1, 2),
	} {
		if a == b {
			t.Errorf("%s give the same hash", name)
		}
	}
	if first, again := hash(rootHash("s"), 1, 2), hash(rootHash("s"), 1, 2); first != again {
		t.Error("equal blocks give different hashes")
	}
}
