package web

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOpenConsolesShareAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := box()
		h := newHandler(t, nil, []Pool{p})
		// shows says whether the page has the number of spills that is there now.
		shows := func(spills int64, headers ...string) bool {
			p.view.Replicas[0].SpilledIn = spills
			w := call(h, "GET", "/models/qwen3-4b-dp4", "", headers...)
			if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
				t.Errorf("%d %v", w.Code, w.Header())
			}
			return strings.Contains(w.Body.String(), fmt.Sprintf(`data-col="spilled_in">%d<`, spills))
		}
		for _, c := range []struct {
			what   string
			after  time.Duration
			change string
			header []string
			fresh  bool
		}{
			{"the first", 0, "", []string{refreshHeader, "1"}, true},
			{"another at the same time", 0, "", []string{refreshHeader, "1"}, false},
			{"one that is opened", 0, "", nil, true},
			{"another a moment later", refreshesFor - time.Millisecond, "", []string{refreshHeader, "1"}, false},
			{"the next", time.Millisecond, "", []string{refreshHeader, "1"}, true},
			{"one after a change", 0, "/api/models/qwen3-4b-dp4/replicas/1/drain", []string{refreshHeader, "1"}, true},
		} {
			time.Sleep(c.after)
			if c.change != "" {
				if w := call(h, "POST", c.change, ""); w.Code != 200 {
					t.Errorf("%s: %d", c.change, w.Code)
				}
			}
			if fresh := shows(p.view.Replicas[0].SpilledIn+1000, c.header...); fresh != c.fresh {
				t.Errorf("%s is made anew: %v, want %v", c.what, fresh, c.fresh)
			}
		}
	})
}
