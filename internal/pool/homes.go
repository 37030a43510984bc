package pool

import (
	"log/slog"
	"time"

	"lmwarden/internal/routing"
)

// SavedHome is a row of the home table in a form that outlasts the numbers of the
// replicas.
type SavedHome struct {
	routing.Home
	// At is where the home is and SpilledTo where the conversation spilled last;
	// they count, not the numbers in Home.
	At, SpilledTo Place
}

// Place is a replica by what does not change with the configuration. The zero
// Place is none.
type Place struct {
	URL  string
	Rank int // among the ranks behind the URL
}

// Home tells where a conversation lives. Its Replica is None while the replica is
// not there yet.
func (p *Pool) Home(k routing.Key) (routing.Home, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core != nil {
		if h, known := p.core.Home(k); known {
			return h, true
		}
	}
	saved, known := p.saved[k]
	return saved.Home, known
}

// HomedAt lists the conversations whose home is a replica, in no particular order;
// all is false when there are more than n, and then none is listed.
func (p *Pool) HomedAt(replica, n int) (keys []routing.Key, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core == nil {
		return nil, true
	}
	return p.core.HomedAt(replica, n)
}

// Saved is a row to be saved for Restore in the next life of the gateway. It is
// false for a conversation that is not known or has no home.
func (p *Pool) Saved(k routing.Key) (SavedHome, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core != nil {
		if h, known := p.core.Home(k); known {
			return SavedHome{Home: h, At: p.place(h.Replica), SpilledTo: p.place(h.LastSpill)}, h.Replica != routing.None
		}
	}
	saved, known := p.saved[k] // not restored yet, not to be lost either
	return saved, known
}

// Restore fills the home table of a pool that has served nothing yet. Homes on
// replicas that are not there are kept until they are, or until the conversation
// is placed anew or has been idle for too long.
func (p *Pool) Restore(homes []SavedHome) {
	p.mu.Lock()
	defer p.unlock()
	p.saved = make(map[routing.Key]SavedHome, len(homes))
	for _, h := range homes {
		h.Epoch = 1 // epochs are counted anew in each life of the gateway
		h.Replica, h.LastSpill = routing.None, routing.None
		p.saved[h.Key] = h
	}
	if p.core != nil {
		p.restore(time.Now())
	}
}

// restore hands the core those of the saved homes whose replica is there. Callers
// hold mu.
func (p *Pool) restore(now time.Time) {
	if len(p.saved) == 0 {
		return
	}
	index := make(map[Place]int, len(p.replicas))
	for i := range p.replicas {
		index[p.place(i)] = i
	}
	var found []routing.Home
	for k, saved := range p.saved {
		h := saved.Home
		var there bool
		if h.Replica, there = index[saved.At]; !there {
			continue
		}
		if spill, there := index[saved.SpilledTo]; there {
			h.LastSpill = spill
		}
		found = append(found, h)
		delete(p.saved, k)
	}
	if len(found) == 0 {
		return
	}
	p.core.Restore(now, found)
	p.note(slog.LevelInfo, "conversations restored", "restored", len(found), "homes_not_there", len(p.saved))
}

// RestoreLearned gives a pool that has served nothing yet what an earlier one of
// the model had learned, as View().Routing.Learned.
func (p *Pool) RestoreLearned(l routing.Learned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learned = l
	if p.core != nil {
		p.core.RestoreLearned(l)
	}
}

// place is where a replica is; the zero Place for none.
func (p *Pool) place(replica int) Place {
	if replica < 0 || replica >= len(p.replicas) {
		return Place{}
	}
	r := p.replicas[replica]
	return Place{URL: r.server.base.String(), Rank: r.rank}
}
