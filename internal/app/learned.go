package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

const (
	// learnedFile is what the routing cores have measured, in the data folder.
	learnedFile = "learned.json"
	// learnedVersion is that of its form.
	learnedVersion = 1
	// learnedEvery is how often it is saved.
	learnedEvery = time.Minute
)

// learnedValues are what the routing core of each model has measured, kept over
// restarts so that the first minutes of a life are not decided by guesses.
type learnedValues struct {
	path   string
	log    *slog.Logger
	failed bool // the last save failed; save's only

	mu     sync.Mutex
	models map[string]routing.Learned // as in the file; guarded by mu
}

type learnedForm struct {
	Version int                        `json:"version"`
	Models  map[string]routing.Learned `json:"models"`
}

// openLearned reads what an earlier process saved. Without it everything is
// measured anew within minutes, so a file that cannot be read is only told of.
func openLearned(dir string, log *slog.Logger) *learnedValues {
	v := &learnedValues{path: filepath.Join(dir, learnedFile), log: log, models: map[string]routing.Learned{}}
	form, err := readLearned(v.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		log.Warn("what was learned of the engines cannot be read: it is learned anew", "error", err.Error())
	default:
		v.models = form.Models
	}
	return v
}

func readLearned(path string) (form learnedForm, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return form, err
	}
	if err := json.Unmarshal(text, &form); err != nil {
		return form, fmt.Errorf("%s: %w", path, err)
	}
	if form.Version != learnedVersion {
		return form, fmt.Errorf("%s has version %d; this program reads %d", path, form.Version, learnedVersion)
	}
	if form.Models == nil {
		form.Models = map[string]routing.Learned{}
	}
	return form, nil
}

// restore gives a pool what was learned of its model.
func (v *learnedValues) restore(p *pool.Pool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.RestoreLearned(v.models[p.Name()])
}

// save writes what the pools have learned, if it is anything new. What is known
// of models that have no pool now stays.
func (v *learnedValues) save(pools []*pool.Pool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := false
	for _, p := range pools {
		l := p.View().Routing.Learned
		// What follows from the rest is not restored.
		l.Shared, l.Hold, l.Throughput = routing.Measured{}, routing.Measured{}, routing.Measured{}
		// With the first complete answer there is a place time.
		if l.Place.Samples > 0 && !reflect.DeepEqual(l, v.models[p.Name()]) {
			v.models[p.Name()], changed = l, true
		}
	}
	if !changed {
		return
	}
	err := v.write()
	if err != nil && !v.failed {
		v.log.Error("what was learned of the engines is not saved: a restart now would learn it anew", "error", err.Error())
	}
	v.failed = err != nil
}

func (v *learnedValues) write() error {
	text, err := json.MarshalIndent(learnedForm{learnedVersion, v.models}, "", " ")
	if err != nil {
		return err
	}
	next := v.path + ".next"
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, v.path) // a crash leaves the old one or the new one
}
