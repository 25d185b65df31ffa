//! A cache of compiled grammars by content, bounded by number and bytes. Does not know how they are
//! compiled.

use std::sync::{Arc, Mutex, PoisonError};

use super::{CompiledGrammar, ConstraintSpec, GrammarCompiler, GrammarError};

/// Bounds on a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of grammars.
    pub max_grammars: usize,
    /// Maximum estimated bytes of all grammars; the last used one is always kept.
    pub max_bytes: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { max_grammars: 64, max_bytes: 64 << 20 }
    }
}

/// The grammars of one tokenizer. Shared between threads; compiling does not block other threads.
#[derive(Debug)]
pub struct GrammarCache {
    compiler: GrammarCompiler,
    limits: CacheLimits,
    /// Entries, the most recently used last. Specifications are compared too, since a client could
    /// construct equal keys.
    entries: Mutex<Vec<(ConstraintSpec, Arc<CompiledGrammar>)>>,
}

impl GrammarCache {
    /// Creates an empty cache.
    pub fn new(compiler: GrammarCompiler, limits: CacheLimits) -> Self {
        Self { compiler, limits, entries: Mutex::new(Vec::new()) }
    }

    /// Returns the grammar of a constraint, compiling it if necessary.
    ///
    /// # Errors
    /// Errors of [`GrammarCompiler::compile`]; they are not cached.
    pub fn get(&self, spec: &ConstraintSpec) -> Result<Arc<CompiledGrammar>, GrammarError> {
        if let Some(grammar) = self.find(spec) {
            return Ok(grammar);
        }
        let grammar = self.compiler.compile(spec)?;
        // Another thread may have compiled the same one meanwhile; outputs under one constraint share one
        // automaton.
        if let Some(grammar) = self.find(spec) {
            return Ok(grammar);
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push((spec.clone(), grammar.clone()));
        self.shrink(&mut entries);
        Ok(grammar)
    }

    /// Number of cached grammars.
    pub fn len(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Estimated bytes of all grammars at present.
    pub fn n_bytes(&self) -> usize {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|(_, grammar)| grammar.n_bytes()).sum()
    }

    fn find(&self, spec: &ConstraintSpec) -> Option<Arc<CompiledGrammar>> {
        let key = spec.key();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let idx = entries.iter().position(|(other, grammar)| grammar.key() == key && other == spec)?;
        let entry = entries.remove(idx);
        let grammar = entry.1.clone();
        entries.push(entry);
        // Automata grow with use.
        self.shrink(&mut entries);
        Some(grammar)
    }

    fn shrink(&self, entries: &mut Vec<(ConstraintSpec, Arc<CompiledGrammar>)>) {
        let mut n_bytes: usize = entries.iter().map(|(_, grammar)| grammar.n_bytes()).sum();
        while entries.len() > 1
            && (entries.len() > self.limits.max_grammars || n_bytes > self.limits.max_bytes)
        {
            n_bytes = n_bytes.saturating_sub(entries.remove(0).1.n_bytes());
        }
    }
}
