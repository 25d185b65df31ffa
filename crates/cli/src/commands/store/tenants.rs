//! `throng store export` and `throng store delete`: prints or deletes the stored objects of an
//! organisation, a project or a tenant.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use throng_store::{
    ItemAfter, ItemQuery, MAX_PAGE_ENTRIES, Store, StoreError, StoredItem, StoredObject, open_existing,
};

use crate::args::TenantArgs;
use crate::process::output;

/// Number of objects read at a time.
const N_OBJECTS: usize = 100;

/// Prints all objects with their items, one JSON value a line.
///
/// # Errors
/// When the database cannot be used, or there is no such organisation or project.
pub async fn export(arguments: &TenantArgs) -> Result<()> {
    let store = open_existing(&arguments.database.database).await?;
    for tenant in tenants(&*store, arguments).await? {
        let mut after = 0;
        loop {
            let objects = store.export_objects(&tenant, after, N_OBJECTS).await?;
            let Some(last) = objects.last() else { break };
            after = last.number;
            for object in &objects {
                output::line(object_line(object))?;
                export_items(&*store, object).await?;
            }
        }
    }
    Ok(())
}

async fn export_items(store: &dyn Store, object: &StoredObject) -> Result<()> {
    let mut query = ItemQuery::new(object.key.clone(), MAX_PAGE_ENTRIES);
    loop {
        let items = match store.items(&query).await {
            Ok(items) => items,
            // The object was deleted meanwhile.
            Err(StoreError::UnknownObject) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(last) = items.last() else { return Ok(()) };
        query.after = Some(ItemAfter::Number(last.number));
        for item in &items {
            output::line(item_line(object, item))?;
        }
    }
}

/// Deletes all objects of a tenant.
///
/// # Errors
/// When the database cannot be used, or there is no such organisation or project.
pub async fn delete(arguments: &TenantArgs) -> Result<()> {
    let store = open_existing(&arguments.database.database).await?;
    let mut n_deleted = 0;
    for tenant in tenants(&*store, arguments).await? {
        loop {
            match store.delete_objects(&tenant).await? {
                0 => break,
                n => n_deleted += n,
            }
        }
    }
    Ok(output::line(format!("{n_deleted} objects deleted"))?)
}

/// The tenants in question: all projects of an organisation, or the named tenant.
async fn tenants(store: &dyn Store, arguments: &TenantArgs) -> Result<Vec<String>> {
    if let Some(tenant) = &arguments.tenant {
        return Ok(vec![tenant.clone()]);
    }
    let Some(organisation) = &arguments.organisation else {
        bail!("name an organisation or a tenant");
    };
    let keys = store.keys().await?.keys;
    let is_meant = |project: &str| arguments.project.as_deref().is_none_or(|wanted| wanted == project);
    let of_keys = keys.iter().filter(|key| key.organisation == *organisation && is_meant(&key.project));
    let mut tenants: Vec<String> = of_keys.map(|key| key.project_id.clone()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    if tenants.is_empty() {
        bail!("there is no organisation or project of this name");
    }
    Ok(tenants)
}

fn object_line(object: &StoredObject) -> Value {
    json!({
        "tenant": object.key.tenant,
        "kind": object.key.kind.name(),
        "id": object.key.id,
        "parent": object.parent,
        "created_at": object.created_unix_s,
        "expires_at": object.expires_unix_s,
        "body": content(&object.body),
    })
}

fn item_line(object: &StoredObject, item: &StoredItem) -> Value {
    json!({
        "kind": object.key.kind.name(),
        "object": object.key.id,
        "number": item.number,
        "item": item.id,
        "body": content(&item.body),
    })
}

/// A body as JSON if it parses, else as text, else in hexadecimal digits.
fn content(body: &[u8]) -> Value {
    match (serde_json::from_slice(body), std::str::from_utf8(body)) {
        (Ok(json), _) => json,
        (_, Ok(text)) => json!({"text": text}),
        _ => json!({"hex": body.iter().map(|byte| format!("{byte:02x}")).collect::<String>()}),
    }
}
