package llmapi

// CacheReport says whether an answer told its cached tokens. Absent, null and
// zero are three different things.
type CacheReport uint8

const (
	CacheAbsent   CacheReport = iota // the key is not there
	CacheNull                        // the key, or the object around it, is null
	CacheReported                    // a number, 0 included
)

// Usage is an engine's own token count for one answer.
type Usage struct {
	// Known is false until the engine told final or running counts; the rest is
	// zero then and means nothing.
	Known      bool
	Prompt     int64 // the whole prompt, cached part included, in every dialect
	Cached     int64
	CacheState CacheReport
	Completion int64
}

// Ending is how an answer ended, as far as its bytes tell. Of several signs the
// worst counts, and the values are in that order.
type Ending uint8

const (
	EndNone     Ending = iota // not ended yet, or cut
	EndComplete               // the dialect's regular end was seen
	EndAborted                // the engine cut the answer short but closed it regularly (finish_reason "abort", null stop reason)
	EndError                  // the answer carries an error
)

// String is the ending's name in lower case.
func (e Ending) String() string {
	switch e {
	case EndComplete:
		return "complete"
	case EndAborted:
		return "aborted"
	case EndError:
		return "error"
	}
	return "none"
}

// Answer is what we read of an answer that is no stream.
type Answer struct {
	ID     string // as the engine named it, empty when it did not
	Usage  Usage
	Ending Ending
	// Unmarked says that the answer would look the same if the engine had cut it
	// short at its death: vLLM up to 0.33 marks none on /v1/responses, and none that
	// has called a tool.
	Unmarked bool
}

// ReadAnswer reads the body of a successful answer that is no stream. A body
// that is not one whole JSON object has ended with EndNone.
func ReadAnswer(route Route, body []byte) Answer {
	var f frame
	if !f.parse(body) {
		return Answer{}
	}
	end := EndComplete
	switch {
	case f.failed, f.kind == "error":
		end = EndError
	case f.aborted, f.status == "cancelled":
		end = EndAborted
	case route == RouteMessages && !f.stopped:
		end = EndAborted
	}
	return Answer{
		ID: f.id, Usage: f.counts.usage(), Ending: end,
		Unmarked: end == EndComplete && (route == RouteResponses || f.toolCall),
	}
}

// frame is what we read of one JSON object of an answer: a whole body or the
// data of an event. The keys of the dialects do not clash, so one reader serves
// all.
type frame struct {
	counts     counts // of usage, also of that in a message or response inside
	id         string // of the answer, also of a message or response inside
	kind       string // the type of events and of Anthropic bodies
	status     string // of a response
	hasChoices bool   // choices has entries
	noChoices  bool   // choices is there and empty
	hasUsage   bool   // usage is there and an object
	failed     bool   // an error, or a response with status "failed"
	aborted    bool   // a finish reason "abort"
	stopped    bool   // a stop reason other than null
	toolCall   bool   // it ended to call a tool
}

// parse reads data and reports whether it is one JSON object. If it is not, the
// frame holds what stands before the fault.
func (f *frame) parse(data []byte) bool {
	s := scanner{b: data}
	f.read(&s)
	s.end()
	return s.err == nil
}

func (f *frame) read(s *scanner) {
	for key := range s.members {
		switch string(key) {
		case "choices":
			f.readChoices(s)
		case "usage":
			f.hasUsage = s.peek() == '{'
			f.counts.read(s)
		case "error":
			f.failed = f.failed || s.peek() != 'n'
			s.skip()
		case "object": // {"object":"error","message":…} of older engines
			f.failed = s.is("error") || f.failed
		case "id":
			f.id = s.word()
		case "type":
			f.kind = s.word()
		case "status":
			f.status = s.word()
			f.failed = f.failed || f.status == "failed"
		case "stop_reason":
			f.stopped = s.peek() != 'n'
			f.toolCall = s.is("tool_use")
		case "delta", "message", "response":
			// An object has the stop reason, usage or status inside; deltas of
			// responses and old error messages are text.
			if s.peek() != '{' {
				s.skip()
				continue
			}
			kind := f.kind
			f.read(s)
			f.kind = kind
		default:
			s.skip()
		}
	}
}

func (f *frame) readChoices(s *scanner) {
	if s.peek() != '[' {
		s.skip()
		return
	}
	for range s.elements {
		f.hasChoices = true
		if s.peek() != '{' {
			s.skip()
			continue
		}
		for key := range s.members {
			if string(key) == "finish_reason" {
				reason := s.word()
				f.aborted = f.aborted || reason == "abort"
				f.toolCall = f.toolCall || reason == "tool_calls"
			} else {
				s.skip()
			}
		}
	}
	f.noChoices = !f.hasChoices
}

// is reads any value and reports whether it is this string.
func (s *scanner) is(word string) bool {
	if s.peek() == '"' {
		return string(s.string()) == word
	}
	s.skip()
	return false
}

// word reads a string; any other value is skipped and reads as empty.
func (s *scanner) word() string {
	if s.peek() == '"' {
		return s.decoded()
	}
	s.skip()
	return ""
}

// counts are the numbers of usage objects, merged: a number told later replaces
// the earlier one, a number not told stays. Running counts are cumulative, so
// that the last one is the sum.
type counts struct {
	told              bool
	prompt            int64 // prompt_tokens, or input_tokens of responses and messages
	cacheRead         int64
	cacheCreation     int64 // Anthropic only, beside input_tokens
	completion        int64
	cache             CacheReport
	anthropicCounting bool
}

// read merges a usage object; null and other values are skipped.
func (c *counts) read(s *scanner) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	for key := range s.members {
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			c.told = c.told || s.peek() != 'n'
			c.prompt = s.count()
		case "completion_tokens", "output_tokens":
			c.told = c.told || s.peek() != 'n'
			c.completion = s.count()
		case "prompt_tokens_details", "input_tokens_details":
			c.readDetails(s)
		case "cache_read_input_tokens":
			c.anthropicCounting = true
			c.readCached(s)
		case "cache_creation_input_tokens":
			c.anthropicCounting = true
			c.cacheCreation = s.count()
		default:
			s.skip()
		}
	}
}

func (c *counts) readDetails(s *scanner) {
	switch s.peek() {
	case '{':
		for key := range s.members {
			if string(key) == "cached_tokens" {
				c.readCached(s)
			} else {
				s.skip()
			}
		}
	case 'n':
		s.skip()
		if c.cache == CacheAbsent {
			c.cache = CacheNull
		}
	default:
		s.skip()
	}
}

func (c *counts) readCached(s *scanner) {
	if s.peek() == 'n' {
		s.skip()
		if c.cache == CacheAbsent {
			c.cache = CacheNull
		}
		return
	}
	c.cacheRead, c.cache = s.count(), CacheReported
}

func (c *counts) usage() Usage {
	if !c.told {
		return Usage{}
	}
	u := Usage{Known: true, Prompt: c.prompt, Cached: c.cacheRead, CacheState: c.cache, Completion: c.completion}
	if c.anthropicCounting {
		// Anthropic's input_tokens are those neither read from the cache nor
		// written to it.
		u.Prompt += c.cacheRead + c.cacheCreation
	}
	return u
}
