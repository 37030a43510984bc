// Package aiperf writes what was measured in the form of AIPerf's exports, so that
// tools which read those read ours: the form of AIPerf 0.13, schema 1.4 of its
// summary (https://docs.nvidia.com/aiperf/reference/json-export-schema). It adds
// nothing that requests.jsonl does not say.
//
// AIPerf writes one folder per run at one concurrency. A measurement becomes one
// per arm, number of sessions and seed.
package aiperf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"lmwarden/internal/bench/results"
)

// Names of the files in the folder of a run.
const (
	RecordsFile = "profile_export.jsonl"
	SummaryFile = "profile_export_aiperf.json"
)

// Write makes a folder for each run in dir, called ARM-SESSIONS-SEED, with the
// records and the summary of its requests. Requests of one run must follow each
// other, as those of results.Results do.
func Write(dir string, requests []results.Request) error {
	for len(requests) > 0 {
		n := 1
		for n < len(requests) && runOf(&requests[n]) == runOf(&requests[0]) {
			n++
		}
		if err := writeRun(dir, requests[:n]); err != nil {
			return fmt.Errorf("write %s: %w", dir, err)
		}
		requests = requests[n:]
	}
	return nil
}

// run is what AIPerf calls one.
type run struct {
	arm      string
	sessions int
	seed     uint64
}

func runOf(q *results.Request) run { return run{q.Arm, q.Sessions, q.Seed} }

// name is the run's as a file name, whatever the arm is called.
func (r run) name() string {
	return fmt.Sprintf("%s-%d-%d", url.PathEscape(r.arm), r.sessions, r.seed)
}

func writeRun(dir string, requests []results.Request) error {
	r := runOf(&requests[0])
	dir = filepath.Join(dir, r.name())
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	list := recordsOf(requests)
	var lines bytes.Buffer
	e := json.NewEncoder(&lines)
	for i := range list {
		if err := e.Encode(&list[i]); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, RecordsFile), lines.Bytes(), 0o666); err != nil {
		return err
	}
	data, err := json.MarshalIndent(summaryOf(r, list), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, SummaryFile), append(data, '\n'), 0o666)
}
