//! The operator's prices for tokens of each model. Does not know the tenants.

use std::collections::HashMap;

use throng_store::{MAX_PRICE, Prices, parse_millionths};

use serde::{Deserialize, Serialize};

/// The prices of a model, `[[gateway.prices]]` in the configuration file: US dollars per million tokens, as
/// strings with up to six decimals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Name of the model or adapter.
    pub model: String,
    /// Price of prompt tokens in dollars per million.
    pub prompt: String,
    /// Price of prompt tokens found in the prefix cache; default: that of other prompt tokens.
    #[serde(default)]
    pub cached: Option<String>,
    /// Price of generated tokens.
    pub generated: String,
}

/// The prices of all models; models without prices are free.
#[derive(Debug, Clone, Default)]
pub struct PriceTable(HashMap<String, Prices>);

impl PriceTable {
    /// Parses the prices.
    ///
    /// # Errors
    /// When a price is invalid; the error names it.
    pub fn new(prices: &[ModelPrice]) -> Result<Self, String> {
        let read = |text: &String| {
            parse_millionths(text).filter(|price| *price <= MAX_PRICE).ok_or_else(|| text.clone())
        };
        let entry = |price: &ModelPrice| {
            let prices = Prices {
                prompt: read(&price.prompt)?,
                cached: read(price.cached.as_ref().unwrap_or(&price.prompt))?,
                generated: read(&price.generated)?,
            };
            Ok((price.model.clone(), prices))
        };
        prices.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// The prices of the first of these names that has any.
    pub fn of(&self, names: &[&str]) -> Prices {
        names.iter().find_map(|name| self.0.get(*name)).copied().unwrap_or_default()
    }
}
