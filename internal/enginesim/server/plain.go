package server

import (
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"lmwarden/internal/enginesim"
)

// The routes that generate nothing.

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) {
	now := unixNow()
	models := list{}
	for _, name := range s.models {
		models = append(models, object{
			{"id", name}, {"object", "model"}, {"created", now}, {"owned_by", "vllm"}, {"root", s.models[0]}, {"parent", nil},
			{"max_model_len", s.params.ModelLen()}, {"permission", list{object{
				{"id", newID("modelperm-")}, {"object", "model_permission"}, {"created", now},
				{"allow_create_engine", false}, {"allow_sampling", true}, {"allow_logprobs", true},
				{"allow_search_indices", false}, {"allow_view", true}, {"allow_fine_tuning", false},
				{"organization", "*"}, {"group", nil}, {"is_blocking", false},
			}}},
		})
	}
	writeJSON(w, http.StatusOK, object{{"object", "list"}, {"data", models}})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusOK
	if s.process().is(dead) {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(status)
}

func (s *Server) worldSize(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, object{{"world_size", s.process().engine.ranks()}})
}

// constant serves an answer that never changes.
func (s *Server) constant(answer object) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, answer) }
}

// scaleOut refuses routes that need a flag which the simulation does not have.
func (s *Server) scaleOut(w http.ResponseWriter, _ *http.Request) {
	s.refuse(w, &apiError{
		status: http.StatusForbidden, kind: "PermissionDeniedError",
		message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
	})
}

func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, object{{"success", s.process().engine.resetCache()}})
}

// tokenize is POST /tokenize, of a prompt or of messages.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	b, refusal := readBody(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	model := b.text("model")
	text := b.text("prompt")
	raw := b.members("messages")
	tools := chatTools(b.members("tools"))
	refusal = b.err
	if refusal == nil {
		refusal = s.checkModel(model)
	}
	var tokens []enginesim.Token
	if b.has("messages") && refusal == nil {
		var messages []message
		if messages, refusal = chatMessages(raw); refusal == nil {
			tokens, refusal = s.render(messages, tools)
		}
	} else if refusal == nil {
		if refusal = s.checkCharacters(utf8.RuneCountInString(text)); refusal == nil {
			tokens = s.tokenizer.Append(nil, text)
		}
	}
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	writeJSON(w, http.StatusOK, object{
		{"count", len(tokens)}, {"max_model_len", s.params.ModelLen()}, {"tokens", s.toIDs(tokens)}, {"token_strs", nil},
	})
}

// detokenize is POST /detokenize. Only ids of single bytes have a text: the others left the vocabulary that
// the simulation does not have, and come back as replacement characters.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	b, refusal := readBody(r)
	if refusal != nil {
		s.refuse(w, refusal)
		return
	}
	b.require("tokens", 0)
	var ids []int64
	if json.Unmarshal(b.fields["tokens"], &ids) != nil && b.err == nil {
		b.violation("tokens", "list_type", "Input should be a valid list")
	}
	if b.err != nil {
		s.refuse(w, b.err)
		return
	}
	var text []byte
	for _, id := range ids {
		if id >= 0 && id < 256 {
			text = append(text, byte(id))
		} else {
			text = utf8.AppendRune(text, utf8.RuneError)
		}
	}
	writeJSON(w, http.StatusOK, object{{"prompt", string(text)}})
}
