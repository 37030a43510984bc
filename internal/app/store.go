package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/session"
)

const (
	// conversationsFile is the conversation table in the data folder.
	conversationsFile = "conversations"
	// saveEvery is how much a kill may cost.
	saveEvery = time.Second
)

// store saves the identities of the session table and, beside each, the home
// that the routing core gave it, so that a restart scatters no conversation; and
// what the cores have learned.
type store struct {
	file    *session.File
	learned *learnedValues
	log     *slog.Logger
	failed  bool // the last save failed; run's only

	mu sync.Mutex
	// loaded are homes as they were saved, by model, until their pool was seen;
	// guarded by mu. Its inner maps do not change.
	loaded map[string]map[session.Key][]byte
}

// openStore loads what an earlier process saved in dir and keeps it up to date
// from then on. A table that cannot be read is moved aside: starting with an
// empty one costs one cold turn per conversation, not starting costs the service.
func openStore(dir string, table *session.Table, log *slog.Logger) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w; give another one with --data", err)
	}
	s := &store{log: log, loaded: map[string]map[session.Key][]byte{}}
	collect := func(model string, k session.Key, data []byte) {
		if s.loaded[model] == nil {
			s.loaded[model] = map[session.Key][]byte{}
		}
		s.loaded[model][k] = data
	}
	path := filepath.Join(dir, conversationsFile)
	file, loaded, err := session.OpenFile(path, table, time.Now(), collect)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		aside := fmt.Sprintf("%s.unreadable-%d", path, time.Now().Unix())
		log.Error("the conversation table cannot be read: moved aside, starting with an empty one", "error", err.Error(), "moved_to", aside)
		if err := os.Rename(path, aside); err != nil {
			return nil, fmt.Errorf("move the unreadable conversation table aside: %w", err)
		}
		file, loaded, err = session.OpenFile(path, table, time.Now(), collect)
	}
	if err != nil {
		return nil, err
	}
	log.Info("conversation table loaded", "path", path, "conversations", loaded.Conversations, "expired", loaded.Expired, "cut", loaded.Cut)
	s.file = file
	s.learned = openLearned(dir, log)
	return s, nil
}

// restore gives a pool the homes that were saved for it. It suits
// pool.SetOptions.Added, since a pool may appear long after the start.
func (s *store) restore(p *pool.Pool) {
	s.mu.Lock()
	saved := s.loaded[p.Name()]
	s.mu.Unlock()
	homes := make([]pool.SavedHome, 0, len(saved))
	for k, data := range saved {
		if h, err := decodeHome(routing.Key(k), data); err != nil {
			s.log.Warn("a saved home is not readable: its conversation is placed anew", "conversation", k.Name(), "error", err.Error())
		} else {
			homes = append(homes, h)
		}
	}
	p.Restore(homes)
	s.learned.restore(p)
}

// home is what is saved beside an identity: its home now or, while its pool has
// not appeared, what was loaded.
func (s *store) home(models *pool.Set, model string, k session.Key) []byte {
	for _, p := range models.Pools() {
		if p.Name() == model {
			s.mu.Lock()
			delete(s.loaded, model) // the pool has it
			s.mu.Unlock()
			return encodeHome(p, k)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded[model][k]
}

// run saves what changed until ctx ends, then once more.
func (s *store) run(ctx context.Context, models *pool.Set) {
	home := func(model string, k session.Key) []byte { return s.home(models, model, k) }
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	learned := time.NewTicker(learnedEvery)
	defer learned.Stop()
	for {
		select {
		case <-tick.C:
			s.note(s.file.Sync(home))
		case <-learned.C:
			s.learned.save(models.Pools())
		case <-ctx.Done():
			s.note(s.file.Close(home))
			s.learned.save(models.Pools())
			return
		}
	}
}

// note logs the first failure of a row and the recovery, not every second of a
// full disk.
func (s *store) note(err error) {
	switch {
	case err != nil && !s.failed:
		s.log.Error("the conversation table is not saved: a restart now would scatter conversations", "error", err.Error())
	case err == nil && s.failed:
		s.log.Info("the conversation table is saved again")
	}
	s.failed = err != nil
}

// savedHome is the form of a home in the file. Replicas stand in it by URL and
// rank, since their numbers change with the configuration.
type savedHome struct {
	URL       string `json:"e"`
	Rank      int    `json:"r"`
	Turns     int64  `json:"t,omitempty"`
	Spills    int64  `json:"s,omitempty"`
	Moves     int64  `json:"m,omitempty"`
	Tokens    int64  `json:"k,omitempty"`
	SpillURL  string `json:"le,omitempty"`
	SpillRank int    `json:"lr,omitempty"`
	Seen      int64  `json:"u"` // Unix milliseconds
}

// encodeHome is nil for a conversation without a home.
func encodeHome(p *pool.Pool, k session.Key) []byte {
	h, ok := p.Saved(routing.Key(k))
	if !ok {
		return nil
	}
	data, err := json.Marshal(savedHome{
		URL: h.At.URL, Rank: h.At.Rank, Turns: h.Turns, Spills: h.Spills, Moves: h.Moves, Tokens: h.Tokens,
		SpillURL: h.SpilledTo.URL, SpillRank: h.SpilledTo.Rank, Seen: h.LastSeen.UnixMilli(),
	})
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	return data
}

func decodeHome(k routing.Key, data []byte) (pool.SavedHome, error) {
	var h savedHome
	if err := json.Unmarshal(data, &h); err != nil {
		return pool.SavedHome{}, fmt.Errorf("saved home: %w", err)
	}
	return pool.SavedHome{
		At:        pool.Place{URL: h.URL, Rank: h.Rank},
		SpilledTo: pool.Place{URL: h.SpillURL, Rank: h.SpillRank},
		Home: routing.Home{
			Key: k, Turns: h.Turns, Spills: h.Spills, Moves: h.Moves, Tokens: h.Tokens, LastSeen: time.UnixMilli(h.Seen),
		},
	}, nil
}
