//! What tokens of each model cost, as the operator set it. Does not know who pays.

use std::collections::HashMap;

use throng_store::{MAX_PRICE, Prices, parse_millionths};

use crate::config::ModelPrice;

/// The prices of all models; those without one cost nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct PriceTable(HashMap<String, Prices>);

impl PriceTable {
    /// Reads the prices.
    ///
    /// # Errors
    /// The text that is no price.
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

    /// The prices of the first of these names that has some.
    pub fn of(&self, names: &[&str]) -> Prices {
        names.iter().find_map(|name| self.0.get(*name)).copied().unwrap_or_default()
    }
}
