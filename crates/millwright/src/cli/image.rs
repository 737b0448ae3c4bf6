//! `millwright image …`: what machines boot and write.

use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::installer;
use super::output::{self, Column, Listed, Screen};
use super::sheet::Sheet;
use super::text::{clean, dated, now, relative, rfc3339};
use super::upload::{Bundle, size};
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand};
use proto::millwright::v1::{GetImageRequest, Image, ListImagesRequest, RemoveImageRequest};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Add a file under a name, or put other bytes in the place of those that the name means
    #[command(after_help = "Examples:
  millwright image add debian-12.raw.gz
  millwright image add build/disk.raw --name debian-12.raw --sha256 ba7816bf…

A disk image is raw, or raw and packed with gzip. The file's digest is computed, compared with --sha256 if that is given,
and compared again by the server. For administrators: what machines boot is root on the fleet.")]
    Add {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// What it is called; its file's name by default
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// What its bytes must hash to
        #[arg(long, value_name = "HEX", value_parser = parse_digest)]
        sha256: Option<String>,
    },
    /// List images
    #[command(after_help = "Examples:
  millwright image list
  millwright image list --filter 'kind=kernel' -o wide

Filters: name, sha256, kind, added_by.")]
    List(ListArgs),
    /// Show one image
    #[command(
        after_help = "Examples:\n  millwright image show debian-12.raw.gz\n  millwright image show snponly.efi -o json"
    )]
    Show {
        /// The image's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Take a name away; its bytes go when no other name means them
    #[command(after_help = "Examples:
  millwright image remove debian-11.raw.gz
  millwright image remove debian-11.raw.gz --dry-run

Refused while a workflow names it.")]
    Remove {
        /// The image's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Look, print what would be sent, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Make the installer and the boot loaders from the distribution's packages, and add them
    #[command(after_help = "Examples:
  millwright image build-installer
  millwright image build-installer --only /tmp/installer       (make the files, add nothing)
  millwright image build-installer --kernel linux-image-cloud-amd64

Needs a Debian or Ubuntu with apt's lists fresh (apt-get update), busybox-static and cpio; no root. Packages are
fetched and unpacked, not installed. Adds installer-vmlinuz, installer-initrd, undionly.kpxe and snponly.efi.")]
    BuildInstaller(BuildArgs),
}

#[derive(Args)]
pub struct BuildArgs {
    /// Leave the files in this folder, and add nothing to the server
    #[arg(long, value_name = "FOLDER")]
    only: Option<PathBuf>,
    /// The package of the kernel
    #[arg(long, value_name = "PACKAGE")]
    kernel: Option<String>,
    /// What the kernel is called among the images (netboot.installer_kernel)
    #[arg(long, value_name = "NAME", default_value = "installer-vmlinuz")]
    kernel_name: String,
    /// What the initrd is called among the images (netboot.installer_initrd)
    #[arg(long, value_name = "NAME", default_value = "installer-initrd")]
    initrd_name: String,
}

fn parse_digest(text: &str) -> Result<String, String> {
    let digest = text.to_ascii_lowercase();
    let fits = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    if fits { Ok(digest) } else { Err("a SHA-256 digest is 64 hexadecimal digits".to_owned()) }
}

pub async fn execute(command: ImageCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        ImageCommand::Add { file, name, sha256 } => {
            let name = match name {
                Some(name) => name,
                None => named_after(&file)?,
            };
            let clients = connect(options).await?;
            let image = add(&clients, &file, &name, sha256.as_deref(), options).await?;
            added(options, &image)
        }
        ImageCommand::List(args) => {
            let images = connect(options).await?.images;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListImagesRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(images.clone().list_images(request)).await?;
                Ok((page.images, page.next_page_token))
            })
            .await
        }
        ImageCommand::Show { name } => {
            let image = get(&connect(options).await?, &name).await?;
            output::one(options.output, &image, &image.name, |image| sheet(image, Screen::stdout()))
        }
        ImageCommand::Remove { name, dry_run } => {
            let clients = connect(options).await?;
            let request = RemoveImageRequest { name };
            if dry_run {
                let there = get(&clients, &request.name).await?;
                let mut trial = DryRun::new("millwright.v1.ImageService/RemoveImage", &request.name, &request)?;
                trial.fine(format!("it is there: {}", size(there.bytes)));
                return trial.print(options.output);
            }
            let gone = call(clients.images.clone().remove_image(request)).await?;
            output::one(options.output, &gone, &gone.name, |image| vec![clean(&format!("{} removed", image.name))])
        }
        ImageCommand::BuildInstaller(args) => build(args, options).await,
    }
}

fn named_after(file: &Path) -> Result<String, CliError> {
    let name = file.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    name.ok_or_else(|| CliError::usage(format!("{}: has no plain name; give one by --name", file.display())))
}

async fn get(clients: &Clients, name: &str) -> Result<Image, CliError> {
    call(clients.images.clone().get_image(GetImageRequest { name: name.to_owned() })).await
}

/// Adds a file and answers with the image, as the server has it.
async fn add(
    clients: &Clients,
    file: &Path,
    name: &str,
    expected: Option<&str>,
    options: &ClientOptions,
) -> Result<Image, CliError> {
    domain::id::check_name("name", name).map_err(|e| CliError::from(&e))?;
    let shown = options.output.is_for_people();
    let bundle = Bundle::read(file, shown).await?;
    if let Some(expected) = expected.filter(|expected| *expected != bundle.sha256) {
        let why = format!("{} has the digest {}, not {expected}; nothing was sent", file.display(), bundle.sha256);
        return Err(CliError::refused(why).hint("get the file again, or correct --sha256"));
    }
    bundle.send(clients, name, shown).await?;
    let image = get(clients, name).await?;
    if image.sha256 != bundle.sha256 {
        let why = format!("{name} means other bytes by now ({}); somebody else has added it, too", image.sha256);
        return Err(CliError::failed(why).hint("millwright image show NAME"));
    }
    Ok(image)
}

fn added(options: &ClientOptions, image: &Image) -> Result<(), CliError> {
    output::one(options.output, image, &image.name, |image| {
        vec![clean(&format!("{} added: {}, {}, sha256 {}", image.name, size(image.bytes), image.kind, image.sha256))]
    })
}

async fn build(args: BuildArgs, options: &ClientOptions) -> Result<(), CliError> {
    let own = tempfile::tempdir().map_err(|e| CliError::failed(format!("making a temporary folder: {e}")))?;
    let folder = args.only.clone().unwrap_or_else(|| own.path().join("made"));
    // told before the work is done that nobody will take it
    let clients = match args.only {
        Some(_) => None,
        None => Some(connect(options).await?),
    };
    installer::build(&folder, args.kernel.as_deref(), options.output).await?;
    let Some(clients) = clients else { return Ok(()) };
    for (file, name) in installer::made(&args.kernel_name, &args.initrd_name) {
        let image = add(&clients, &folder.join(file), name, None, options).await?;
        added(options, &image)?;
    }
    Ok(())
}

static COLUMNS: [Column<Image>; 7] = [
    Column::new("IMAGE", |i: &Image, _| i.name.clone()),
    Column::new("KIND", |i: &Image, _| i.kind.clone()),
    Column::new("SIZE", |i: &Image, _| size(i.bytes)),
    Column::new("ADDED", |i: &Image, now| relative(i.added_at.as_ref(), now)).narrow(),
    Column::new("ADDED", |i: &Image, _| rfc3339(i.added_at.as_ref())).wide(),
    Column::new("BY", |i: &Image, _| i.added_by.clone()),
    Column::new("SHA-256", |i: &Image, _| i.sha256.clone()).flex(),
];

impl Listed for Image {
    type Message = Self;
    const PLURAL: &'static str = "images";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.name
    }

    fn message(&self) -> &Self {
        self
    }
}

fn sheet(image: &Image, screen: Screen) -> Vec<String> {
    let now = now();
    let mut sheet = Sheet::new(screen, now);
    sheet
        .row("Image", &image.name)
        .row("Kind", &image.kind)
        .row("Size", &format!("{} ({} bytes)", size(image.bytes), image.bytes))
        .row("SHA-256", &image.sha256)
        .row("Added", &dated(image.added_at.as_ref(), now))
        .row("By", &image.added_by);
    sheet.lines()
}
